"""Runs the process that keeps the manifests of a command's checkpoints (`checkpoint.verify`).

`checkpoints.manifest_keeper` is that process. It belongs to no attempt: while one ends and the next
one starts, it goes on, so that the last checkpoint gets its manifest too. It ends with the job, or
when the job needs another directory. Nothing ever waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL

import supervisor
from supervisor.engines.handles import Notes, Process
from supervisor.engines.host_port import Host, MainLoop
from supervisor.engines.launch import Launch
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Clock
from supervisor.protocol import environment
from supervisor.protocol.location import Uri

_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from supervisor.checkpoints.manifest_keeper import main; main()"
)
_ROOT = str(Path(supervisor.__file__).parents[1])
_MAX_OUTPUT = 16384


class ManifestKeeping:
    """Keeps one such process alive, for the directory of the present phase."""

    def __init__(
        self,
        reactor: MainLoop,
        clock: Clock,
        machine: Host,
        environ: Mapping[str, str],
        warn: Tell,
    ) -> None:
        """`environ` is what the process inherits; `warn` tells people of problems."""
        self._reactor = reactor
        self._clock = clock
        self._machine = machine
        self._environ = environment.without_supervisor_variables(environ)
        self._warn = warn
        self._wanted: Path | Uri | None = None
        self._began = 0.0
        """The Unix time at which the attempt began."""
        self._kept: Path | None = None
        """The directory of the process that runs, or that has given up."""
        self._process: Process | None = None
        self._notes: Notes | None = None
        self._ending: list[Process] = []
        self._told: set[str] = set()

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of the process, and of killed ones that have not ended yet."""
        running = [self._process] if self._process is not None else []
        return tuple(process.pid for process in [*running, *self._ending])

    def begin(self, launch: Launch) -> None:
        """An attempt begins: keep the manifests of its directory, as far as that is known."""
        self._wanted, self._began = launch.plan.checkpoint_dir, self._clock.wall().timestamp()
        self.look(launch)

    def found(self, directory: Path) -> None:
        """The attempt commits in `directory`, which was not known before. Safe in any thread."""
        self._wanted = directory

    def look(self, launch: Launch) -> None:
        """Start the process if it is needed and does not run. Called periodically."""
        wanted = self._wanted if launch.plan.verifies_checkpoints else None
        if wanted != self._kept:
            self._end()
        if isinstance(wanted, Path) and wanted != self._kept:
            self._start(wanted, launch)
        self._tell_problems()

    def _start(self, directory: Path, launch: Launch) -> None:
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT]
        marks = {environment.JOB: launch.job, environment.LINEAGE: launch.lineage}
        notes = self._machine.output_file()
        try:
            process = self._machine.start(
                [*command, str(directory), str(launch.model_dir), str(self._began)],
                env={**self._environ, **marks},
                output=notes.descriptor,
            )
        except OSError as error:
            notes.close()
            self._problem(f"no manifests are made now: {error.strerror or error}")
            return
        self._machine.lower_priority(process.pid)
        self._kept, self._process, self._notes = directory, process, notes
        self._reactor.watch(process.pidfd, lambda: self._ended(process))

    def _end(self) -> None:
        """Kill the process, if it runs."""
        if self._process is not None:
            self._process.signal(SIGKILL)
            self._ending.append(self._process)
        self._forget()

    def _ended(self, process: Process) -> None:
        ended = process.poll(rank=0)
        if ended is None:
            return
        self._reactor.forget(process.pidfd)
        process.close()
        if process is not self._process:
            self._ending.remove(process)
            return
        directory = self._kept
        self._tell_problems()
        self._forget()
        if ended.code is not None:  # it has given up; a kill is no reason not to try again
            self._kept = directory
            if not ended.clean:
                self._problem(f"no manifests are made in this job any more: {ended}")

    def _forget(self) -> None:
        if self._notes is not None:
            self._notes.close()
        self._kept = self._process = self._notes = None

    def _tell_problems(self) -> None:
        """Tell people what the process has written, each line once."""
        if self._notes is not None:
            lines = self._notes.tail(_MAX_OUTPUT).decode(errors="replace").splitlines()
            for line in lines:
                self._problem(line)

    def _problem(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._warn(Notice("manifest-not-written", text, reason=text))
