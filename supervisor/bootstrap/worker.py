"""Reports to the supervisor from the worker's process, and from no other.

Children of the program inherit the environment and, by fork, this object: they must report nothing.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import faulthandler
import os
import sys

from .environment_watch import EnvironmentWatch, ExpectedChanges
from .import_watch import ImportWatch
from .sigterm import SignalModuleWrapper
from .written import PROGRESS_FD, OurFrames, WrittenPaths, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from ..protocol.failure_record import FailureRecord
    from .jax_preemption import PreemptionWatch
    from .monitoring import Monitor
    from .orbax_saving import SaveOnSigterm

# Copied from `protocol.environment`, whose imports would slow down every start of a program.
FAILURE_FILE = "SUPERVISE_FAILURE_FILE"
MODULES_FILE = "SUPERVISE_MODULES_FILE"
RANK = "SUPERVISE_RANK"
STANDBY = "SUPERVISE_STANDBY"
STACKS_FILE = "SUPERVISE_STACKS_FILE"
SAVE_ON_SIGTERM = "SUPERVISE_SAVE_ON_SIGTERM"
STACKS_LINE = b'{"v":1,"kind":"stacks"}\n'
SIGTERM_LINE = b'{"v":1,"kind":"sigterm"}\n'
SIGTERM_KEPT_LINE = b'{"v":1,"kind":"sigterm_kept"}\n'


class SupervisedWorker:
    """This process, as the supervisor's worker."""

    def __init__(self, ours: str, clean_path: list[str]) -> None:
        """`ours` is the bootstrap's directory, `clean_path` is `sys.path` without the program's
        entries."""
        self.frames = OurFrames(ours)
        self._clean_path = clean_path
        self._pid = os.getpid()
        package = sys.modules.get("_supervise")  # where a standby leaves what it has prepared
        self._expected: ExpectedChanges = getattr(package, "expected", None) or ExpectedChanges()
        self._environment = EnvironmentWatch(self._expected, lambda: self.is_here)
        self._failure_file = os.environ.get(FAILURE_FILE)
        self._import_watch = ImportWatch()
        self._monitor: Monitor | None = None
        self._saving: SaveOnSigterm | None = None
        self._preemption: PreemptionWatch | None = None
        self._sigterm_reported = False

    @property
    def is_here(self) -> bool:
        """Whether this is still the process that was started as the worker."""
        return os.getpid() == self._pid

    def begin(self) -> None:
        """Enable stack dumps, and watch for the program's imports of `signal`, jax and Tunix."""
        path = os.environ.get(STACKS_FILE)
        if path:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            faulthandler.register(_signal.SIGUSR2, descriptor, all_threads=True, chain=False)
            if not faulthandler.is_enabled():  # else a person wants its output on standard error
                faulthandler.enable(descriptor, all_threads=True)
            os.register_at_fork(after_in_child=_unregister_stack_dumps)
            say(STACKS_LINE)
        self._environment.begin()
        signals = SignalModuleWrapper(self.report_sigterm, self.frames)
        self.when_imported("signal", signals.watch)
        self.when_imported("jax.monitoring", self._watch_jax)
        self.when_imported("jax._src.clusters", self._register_cluster)
        self.when_imported("jax._src.distributed", self._watch_preemption)
        self.when_imported("tunix", self._watch_tunix)
        if os.environ.get(SAVE_ON_SIGTERM):
            orbax_saving = self._import("bootstrap.orbax_saving")
            self._saving = orbax_saving.SaveOnSigterm(
                lambda: self.is_here, self.frames, signals.replace_default, say
            )
            self.when_imported("orbax.checkpoint.checkpoint_manager", self._saving.watch)

    def when_imported(self, name: str, on_import: Callable[[ModuleType], None]) -> None:
        """Call `on_import` with the module `name` once the program has imported it."""
        self._import_watch.expect(name, on_import)

    def report_sigterm(self) -> None:
        """Report, once, that the program got SIGTERM, or that jax told it of one."""
        if not self.is_here:
            return
        self._say_sigterm()
        if self._saving is not None:
            self._saving.on_sigterm()

    def _say_sigterm(self) -> None:
        if self.is_here and not self._sigterm_reported:
            self._sigterm_reported = say(SIGTERM_LINE)

    def report_agreed_stop(self) -> None:
        """Report that jax has told all processes of the program to save and stop."""
        self.report_sigterm()
        if self._saving is not None:
            self._saving.on_agreed_stop()

    def describe(self, error: BaseException) -> FailureRecord | None:
        """Returns the record of `error`; None: this is not the worker, or describing it failed."""
        if not self.is_here or not self._failure_file:
            return None
        try:
            failure = self._import("protocol.failure_record")
            stage, step = self._monitor.place(error) if self._monitor else own_reports()
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
        step, and whether jax has kept every SIGTERM to itself."""
        if record is not None:
            self.save(record)
        kept = self._preemption is not None and self._preemption.has_begun
        if kept and self.is_here and not self._sigterm_reported:
            say(SIGTERM_KEPT_LINE)
        if self._monitor is not None and self.is_here:
            self._monitor.report_end(record.stage if record is not None else None)

    def watch_written_paths(self) -> None:
        """Report from now on what the program writes that may be a checkpoint."""
        if PROGRESS_FD not in os.environ:
            return
        paths = WrittenPaths(say, lambda: self.is_here)
        sys.addaudithook(paths)
        paths.watch_native_writers(self.when_imported, self.frames)

    def _watch_jax(self, monitoring: ModuleType) -> None:
        if not self.is_here:
            return
        try:
            reporter = self._import("protocol.reporter").Reporter.connect()
            monitor = self._import("bootstrap.monitoring").Monitor(
                reporter, os.environ, self._learner(), self.report_agreed_stop
            )
            monitor.listen(monitoring)
            self._monitor = monitor
        except Exception:
            return

    def _watch_preemption(self, distributed: ModuleType) -> None:
        try:
            jax_preemption = self._import("bootstrap.jax_preemption")
            watch: PreemptionWatch = jax_preemption.PreemptionWatch(self._say_sigterm)
            watch.watch(distributed)
            self._preemption = watch
        except Exception:
            return  # another version of jax: a SIGTERM that it took counts as heard

    def _register_cluster(self, clusters: ModuleType) -> None:
        try:
            self._import("bootstrap.cluster_env").register(clusters)
        except Exception:
            return  # another version of jax: a bare `initialize` finds what it would without us

    def _watch_tunix(self, tunix: ModuleType) -> None:
        """Look at what Tunix cannot resume, once the modules are there that say so."""
        if not self.is_here:
            return
        try:
            resume = self._import("bootstrap.tunix_resume")
        except Exception:
            return
        check = resume.ResumeCheck(lambda: self.is_here, self.frames, say)
        self.when_imported("qwix", check.watch_qwix)
        self.when_imported("tunix.sft.peft_trainer", check.watch_trainer)
        self.when_imported("tunix.rl.rl_learner", check.watch_learner)

    def _learner(self) -> Callable[[], None]:
        """Returns a function to call whenever the program has used jax. It checks that what a
        standby prepared fits, and writes down what the program has imported by then."""
        file = os.environ.get(MODULES_FILE)
        if not file:
            return self._check_preparation
        from contextlib import suppress

        learning = self._import("bootstrap.learning")
        prepared = getattr(sys.modules.get("_supervise"), "prepared", None) or learning.Learned()
        learner = learning.Learner(file, prepared, self._environment)

        def update() -> None:
            if self.is_here:
                self._check_preparation()
                with suppress(OSError):  # a full disk: the next standby does without the list
                    learner.update()

        return update

    def _check_preparation(self) -> None:
        if self.is_here:
            self._expected.check()

    def _import(self, name: str) -> Any:
        """Import our module `name`. Its imports come from Python's own path, even if the program's
        directory has a module of the same name."""
        path = sys.path[:]
        sys.path[:] = self._clean_path
        try:
            return __import__(f"_supervise.{name}", fromlist=[""])
        finally:
            sys.path[:] = path


def own_reports() -> tuple[str | None, int | None]:
    """Returns the stage that the program named last by the module `supervise_worker`, and its last
    completed step; None: it has reported none.

    The program imported that module from its own path: it may be the file of our package, or a copy
    in another version. So it is looked for by name, and what it lacks was not reported.
    """
    current = getattr(sys.modules.get("supervise_worker"), "current", None)
    if not callable(current):
        return None, None
    stage, step = current()
    return stage, step


def _unregister_stack_dumps() -> None:
    """In a forked child: give the stack-dump signal back to the program."""
    if _signal.getsignal(_signal.SIGUSR2) is _signal.SIG_DFL:
        faulthandler.unregister(_signal.SIGUSR2)
