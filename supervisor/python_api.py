"""`supervisor.run`: runs a job from Python, for notebooks and launchers.

`supervise run` is made to be the main program: it handles signals, and starts and kills processes.
So the job runs in a child process, as the same command would run it, and this one waits. The child
is in a session of its own, so that Ctrl-C reaches it once, from here. If this process dies, the
child gets SIGTERM and drains the job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from supervisor.adapters.stores.journal import JournalError
from supervisor.cli.job_view import JobView, view
from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import Status
from supervisor.prepare import Prepared, prepare
from supervisor.protocol.location import Uri

_CHILD = """
import sys
from supervisor.host.birth import drain_with_parent
drain_with_parent(int(sys.argv.pop(1)))
from supervisor.__main__ import main
sys.exit(main())
"""
"""What the child runs: `python -m supervisor`, tied to this process. The option -P keeps modules of
the working directory from taking the place of ours."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run of a job ended, and where the job stands."""

    exit_code: ExitCode
    """The exit code of `supervise run`, before `exit_codes` of the config replaces it."""
    status: Status | None
    """The status of the job; None, as all that follows: its journal is not there or not readable.
    """
    model_dir: Path | Uri
    attempts: int = 0
    """The number of attempts so far, also those of earlier runs of the job."""
    last_step: int | None = None
    """The highest committed step of the phase; None: there is none."""
    summary: Path | None = None
    """The phase's summary.json."""


def run(config: str | os.PathLike[str] | Mapping[str, Any]) -> Result:
    """Run the job until it succeeds or cannot, and return how it ended.

    `config` is the path of a trainer.yaml, or what would be in one. Relative paths in it are
    against the working directory. The output goes to `sys.stdout`. Ctrl-C, or the interrupt of a
    notebook, stops the job; then KeyboardInterrupt is raised once it has ended. The same call goes
    on with the job.

    Raises:
        ConfigError: the config is wrong; nothing was started.
        ChildProcessError: the supervisor was killed.
    """
    with _file_of(config) as path:
        prepared = prepare(path, ())
        returned = _supervise(["run", str(path)])
    job = _job_in(prepared)
    recorded = None if job is None else job.history.state.exit_code
    code = _own_code(returned, prepared.job.exit_codes, recorded)
    model_dir = prepared.job.shown_model_dir
    if job is None:
        return Result(code, None, model_dir)
    state = job.history.state
    return Result(
        code,
        state.status,
        model_dir,
        state.attempt,
        state.budget.highest,
        prepared.job.model_dir / state.directory / "summary.json" if state.directory else None,
    )


@contextmanager
def _file_of(config: str | os.PathLike[str] | Mapping[str, Any]) -> Iterator[Path]:
    """Yields the file of a config. A mapping is written to a file that only this user can read."""
    if not isinstance(config, Mapping):
        yield Path(config)
        return
    with TemporaryDirectory(prefix="supervise-") as name:
        path = Path(name) / "trainer.yaml"
        path.write_text(yaml.dump(dict(config), Dumper=_Dumper), encoding="utf-8")
        yield path


class _Dumper(yaml.SafeDumper):
    """Writes plain values, and paths as texts."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_multi_representer(PurePath, lambda dumper, path: dumper.represent_str(str(path)))


def _supervise(arguments: Sequence[str]) -> int:
    """Run `supervise` with these arguments as a child; returns its exit code, negative for a
    signal.

    A notebook replaces `sys.stdout` by something that is no file: then the lines are passed on.
    """
    passes_on = sys.stdout is not sys.__stdout__
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, str(os.getpid()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if passes_on else None,
        stderr=subprocess.STDOUT if passes_on else None,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    was_interrupted = False
    try:
        while True:
            try:
                for line in child.stdout or ():
                    sys.stdout.write(line)
                code = child.wait()
                break
            except KeyboardInterrupt:
                was_interrupted = True
                child.send_signal(signal.SIGINT)
    except BaseException:
        child.terminate()
        child.wait()
        raise
    finally:
        if child.stdout is not None:
            child.stdout.close()
    if was_interrupted:
        raise KeyboardInterrupt
    return code


def _job_in(prepared: Prepared) -> JobView | None:
    """Returns the job as its journal shows it; None: there is no journal that can be read, as the
    supervisor has said."""
    try:
        return view(prepared.job.shown_model_dir)
    except (JournalError, ValueError, OSError):
        return None


def _own_code(returned: int, mapped: Mapping[int, int], recorded: int | None) -> ExitCode:
    """Returns the code that the config's `exit_codes` has replaced by `returned`. If it may be
    several ones, it is the one that the journal has `recorded`, or else the first.

    Raises:
        ChildProcessError: the supervisor ended otherwise.
    """
    candidates = [code for code in ExitCode if mapped.get(code, code) == returned]
    if not candidates:
        end = f"by {signal.Signals(-returned).name}" if returned < 0 else f"with code {returned}"
        raise ChildProcessError(
            f"the supervisor was ended {end}: run the same job again to go on with it"
        )
    return next((code for code in candidates if code == recorded), candidates[0])
