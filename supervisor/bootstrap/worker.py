"""Reports to the supervisor from the worker's process, and from no other.

Children of the program inherit the environment and, by fork, this object: they must report nothing.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import faulthandler
import os
import stat
import sys

from .import_watch import ImportWatch
from .sigterm import SignalModuleWrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType
    from typing import Any

    from ..protocol.failure_record import FailureRecord
    from .monitoring import Monitor

# Copied from `protocol.environment`, whose imports would slow down every start of a program.
FAILURE_FILE = "SUPERVISE_FAILURE_FILE"
PROGRESS_FD = "SUPERVISE_PROGRESS_FD"
PROGRESS_PIPE = "SUPERVISE_PROGRESS_PIPE"
MODULES_FILE = "SUPERVISE_MODULES_FILE"
RANK = "SUPERVISE_RANK"
STANDBY = "SUPERVISE_STANDBY"
STACKS_FILE = "SUPERVISE_STACKS_FILE"
STACKS_LINE = b'{"v":1,"kind":"stacks"}\n'
SIGTERM_LINE = b'{"v":1,"kind":"sigterm"}\n'


class OurFrames:
    """Context manager that removes the bootstrap's traceback entries from an exception."""

    def __init__(self, ours: str) -> None:
        """`ours` is the bootstrap's directory."""
        self._ours = ours

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.forget(error)

    def forget(self, error: BaseException) -> None:
        """Remove the bootstrap's entries from the traceback of `error`."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(self._ours):
            trace = trace.tb_next
        error.__traceback__ = trace


class SupervisedWorker:
    """This process, as the supervisor's worker."""

    def __init__(self, ours: str, clean_path: list[str]) -> None:
        """`ours` is the bootstrap's directory, `clean_path` is `sys.path` without the program's
        entries."""
        self.frames = OurFrames(ours)
        self._clean_path = clean_path
        self._pid = os.getpid()
        self._environ = dict(os.environ)
        self._failure_file = os.environ.get(FAILURE_FILE)
        self._import_watch = ImportWatch()
        self._monitor: Monitor | None = None
        self._sigterm_reported = False

    @property
    def is_here(self) -> bool:
        """Whether this is still the process that was started as the worker."""
        return os.getpid() == self._pid

    def begin(self) -> None:
        """Enable stack dumps, and watch for the program's imports of `signal` and jax."""
        path = os.environ.get(STACKS_FILE)
        if path:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            faulthandler.register(_signal.SIGUSR2, descriptor, all_threads=True, chain=False)
            if not faulthandler.is_enabled():  # else a person wants its output on standard error
                faulthandler.enable(descriptor, all_threads=True)
            os.register_at_fork(after_in_child=_unregister_stack_dumps)
            _say(STACKS_LINE)
        self.when_imported("signal", SignalModuleWrapper(self.report_sigterm, self.frames).watch)
        self.when_imported("jax.monitoring", self._watch_jax)

    def when_imported(self, name: str, on_import: Callable[[ModuleType], None]) -> None:
        """Call `on_import` with the module `name` once the program has imported it."""
        self._import_watch.expect(name, on_import)

    def report_sigterm(self) -> None:
        """Report, once, that the program got SIGTERM, or that jax told it of one."""
        if self.is_here and not self._sigterm_reported:
            self._sigterm_reported = _say(SIGTERM_LINE)

    def describe(self, error: BaseException) -> FailureRecord | None:
        """Returns the record of `error`; None: this is not the worker, or describing it failed."""
        if not self.is_here or not self._failure_file:
            return None
        try:
            failure = self._import("protocol.failure_record")
            stage, step = self._monitor.place(error) if self._monitor else (None, None)
            rank = int(os.environ.get(RANK, "0"))
            record: FailureRecord = failure.record_of(error, rank=rank, stage=stage, step=step)
            return record
        except Exception:
            return None  # an error of ours must not change how the program ends

    def save(self, record: FailureRecord) -> None:
        """Write the failure record, unless there is one already (the program's own, say)."""
        if not self.is_here or not self._failure_file or os.path.exists(self._failure_file):
            return
        try:
            self._import("protocol.failure_record").save_record(record, self._failure_file)
        except Exception:
            return

    def report_end(self, record: FailureRecord | None) -> None:
        """Save `record`, by which the program has ended (None: it succeeded), and report the last
        step."""
        if record is not None:
            self.save(record)
        if self._monitor is not None and self.is_here:
            self._monitor.report_end(record.stage if record is not None else None)

    def _watch_jax(self, monitoring: ModuleType) -> None:
        if not self.is_here:
            return
        try:
            reporter = self._import("protocol.reporter").Reporter.connect()
            monitor = self._import("bootstrap.monitoring").Monitor(
                reporter, os.environ, self._module_updater(), self.report_sigterm
            )
            monitor.listen(monitoring)
            self._monitor = monitor
        except Exception:
            return

    def _module_updater(self) -> Callable[[], None]:
        """Returns a function that writes down which modules the program has imported by then."""
        file = os.environ.get(MODULES_FILE)
        if not file:
            return lambda: None
        from contextlib import suppress

        learner = self._import("bootstrap.preload").Learner(file, self._environ)

        def update() -> None:
            if self.is_here:
                with suppress(OSError):  # a full disk: the next standby does without the list
                    learner.update()

        return update

    def _import(self, name: str) -> Any:
        """Import our module `name`. Its imports come from Python's own path, even if the program's
        directory has a module of the same name."""
        path = sys.path[:]
        sys.path[:] = self._clean_path
        try:
            return __import__(f"_supervise.{name}", fromlist=[""])
        finally:
            sys.path[:] = path


def _say(line: bytes) -> bool:
    """Write `line` to the progress pipe; False: this process has none, or the write failed."""
    try:
        descriptor = int(os.environ.get(PROGRESS_FD, ""))
        status = os.fstat(descriptor)
        identity = f"{status.st_dev}:{status.st_ino}"
        if stat.S_ISFIFO(status.st_mode) and identity == os.environ.get(PROGRESS_PIPE):
            os.write(descriptor, line)
            return True
    except (ValueError, OSError):
        pass
    return False


def _unregister_stack_dumps() -> None:
    """In a forked child: give the stack-dump signal back to the program."""
    if _signal.getsignal(_signal.SIGUSR2) is _signal.SIG_DFL:
        faulthandler.unregister(_signal.SIGUSR2)
