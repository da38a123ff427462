"""Shows what a hanging worker does: writes its Python and native stacks, or those of the programs
below it where it is a shell or another wrapper.

The tool for native stacks is a process of the job. On a busy machine it takes seconds, so the core
hears when it begins and ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from supervisor.core.events import NativeStacks
from supervisor.engines.group import Member
from supervisor.engines.host_port import Host, MainLoop
from supervisor.engines.launch import Launch
from supervisor.engines.stack_comparison import MAX_STACKS
from supervisor.files.attempts import BELOW_STACKS, NATIVE_STACKS, attempt_folder
from supervisor.host import tree
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Clock
from supervisor.protocol.stacks import STACK_SIGNAL

_NO_TOOL = "py-spy, which takes native stacks, is not installed (extra `debug`)"
_NO_HANDLER = f"the worker has no handler for {STACK_SIGNAL.name}"
_NO_PYTHON = "it runs no Python, nor does a program below it (py-spy knows nothing else)"
_ERROR = "Error: "
"""What py-spy writes begins so if it fails."""


@dataclass(frozen=True, slots=True)
class _Silence:
    """What notices tell of a worker that hangs."""

    rank: int
    pid: int
    used: float
    """CPU seconds in the last `silent` seconds."""
    silent: float

    def missing(self, text: str, why: str) -> Notice:
        """Returns the notice that stacks are not written."""
        return Notice(
            "stacks-missing",
            text,
            rank=self.rank,
            pid=self.pid,
            reason=why,
            cpu_seconds=self.used,
            seconds=self.silent,
        )

    def dumped(self, text: str, place: str) -> Notice:
        """Returns the notice that stacks are written to `place`."""
        return Notice(
            "stacks-dumped",
            text,
            rank=self.rank,
            pid=self.pid,
            place=place,
            cpu_seconds=self.used,
            seconds=self.silent,
        )


class StackDumps:
    """Has stacks written, and knows whether the tool for native ones still runs."""

    def __init__(
        self,
        machine: Host,
        reactor: MainLoop,
        clock: Clock,
        tell: Tell,
        redact: Callable[[str], str],
    ) -> None:
        """`tell` gets notices for people; `redact` removes secrets from the command lines of
        programs."""
        self._machine = machine
        self._reactor = reactor
        self._clock = clock
        self._tell = tell
        self._redact = redact
        self._under_way: set[int] = set()
        """The pidfd of each tool that runs."""

    def begin(self, worker: Member, launch: Launch) -> None:
        """Have the worker's stacks written into the attempt's folder.

        If the worker is a shell or another wrapper, native stacks are those of the programs below
        it. The signal for Python stacks goes only to a process that handles it. It is the trainer
        below a shell that has promised to dump stacks: the shell has no handler and would die of
        the signal.
        """
        rank, pid = worker.rank, worker.process.pid
        found = self._machine.state(pid)  # looked up before the signal wakes it
        programs = self._machine.python_programs(pid)
        below = [one for one in programs if one[0] != pid]
        described = self._described(below)
        used, silent = worker.cpu_time_in_silence(self._clock.now())
        asked = self._ask(worker, below) if worker.dumps_stacks else None
        silence = _Silence(rank, pid, used, silent)
        no_native = self._start_native(silence, programs, launch)
        text = (
            f"rank {rank} (pid {pid}) is {found}; it used {used:.1f} s of CPU time in the last "
            f"{silent:.1f} s{described}"
        )
        where, why = attempt_folder(launch.attempt), no_native or ""
        shown = [each for each, _ in below] if no_native is None or asked is None else [asked]
        stacks = f"the stacks of pid {', '.join(map(str, shown))}" if below else "its stacks"
        if asked is not None or no_native is None:
            text = f"{text}; {stacks} are written to {where}"
            self._tell(silence.dumped(text, where))
            if no_native in (None, _NO_TOOL):
                return
            text = f"the native stacks of rank {rank} (pid {pid}) are not written: {no_native}"
        else:
            why = f"{_NO_HANDLER}, and {no_native}"
            text = f"{text}; {stacks} are not written: {why}"
        self._tell(silence.missing(text, why))

    def _described(self, below: Sequence[tuple[int, tree.Stat]]) -> str:
        """Returns which programs below the worker are looked at, and what they do."""
        if not below:
            return ""
        told = (
            f"pid {pid} ({self._machine.command_line(pid, self._redact)}) is "
            f"{self._machine.state(pid)}"
            for pid, _ in below
        )
        return f"; below it, {', '.join(told)}"

    def _ask(self, worker: Member, below: Sequence[tuple[int, tree.Stat]]) -> int | None:
        """Send the signal for Python stacks to the process that has promised them: the worker, else
        the one program below it. Returns its pid; None: no process got the signal."""
        if self._machine.handles(worker.process.pid, STACK_SIGNAL):
            worker.process.signal(STACK_SIGNAL)
            return worker.process.pid
        if len(below) != 1 or not self._machine.handles(below[0][0], STACK_SIGNAL):
            return None
        return below[0][0] if self._machine.send(*below[0], STACK_SIGNAL) else None

    def end(self) -> None:
        """Kill the tools that still run: what they trace is stopped by them."""
        for tool in self._under_way:
            with suppress(ProcessLookupError):  # it has ended, which is heard later
                signal.pidfd_send_signal(tool, signal.SIGKILL)

    def _start_native(
        self, silence: _Silence, programs: Sequence[tuple[int, tree.Stat]], launch: Launch
    ) -> str | None:
        """Starts to write the native stacks.

        Returns why they are not written; None: they are, unless the tool fails, which is told.
        """
        if not programs:
            return _NO_PYTHON
        for number, (pid, _) in enumerate(programs, 1):
            name = NATIVE_STACKS if pid == silence.pid else BELOW_STACKS
            name = f"{number}.{name}" if len(programs) > 1 else name
            path = launch.file(silence.rank, name)
            try:
                tool = self._machine.dump_native_stacks(pid, path)
            except OSError as error:
                return str(error)
            if tool is None:
                return _NO_TOOL
            ended = partial(self._tell_failure, silence, pid, path, launch.model_dir)
            self._under_way.add(tool)
            self._reactor.watch(tool, partial(self._written, tool, launch.attempt, ended))
            self._reactor.post(NativeStacks(self._clock.now(), launch.attempt, written=False))
        return None

    def _tell_failure(self, silence: _Silence, pid: int, path: Path, below: Path) -> None:
        """Tell people why the tool, which has ended, has written no stacks of `pid`, if so."""
        try:
            said = self._machine.read(path, MAX_STACKS, below).decode(errors="replace")
        except OSError:  # it is too large, or the disk does not answer
            return
        if said.startswith(_ERROR):
            first, _, _ = said.removeprefix(_ERROR).partition("\n")
            why = f"py-spy: {first}"
            self._tell(
                silence.missing(f"the native stacks of pid {pid} are not written: {why}", why)
            )

    def _written(self, tool: int, attempt: int, ended: Callable[[], None]) -> None:
        ended()
        self._reactor.forget(tool)
        self._under_way.discard(tool)
        os.close(tool)
        if not self._under_way:
            self._reactor.post(NativeStacks(self._clock.now(), attempt, written=True))
