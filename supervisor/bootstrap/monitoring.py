"""Infers stages and steps of a program without a reporter, from `jax.monitoring` events.

jax reports when it begins and ends to trace, lower and compile; Orbax when it begins to write or
read a checkpoint, when the program may go on and when all is written; a library that reports
metrics (such as Tunix) gives their step. All other time is called TRAINING. Such stages are marked
*inferred*: the supervisor concludes less from them. What the program reports by `supervise_worker`
is not inferred besides.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from time import monotonic
from types import ModuleType
from typing import Any

from ..protocol.environment import STEPS_FROM_OUTPUT
from ..protocol.messages import Stage
from ..protocol.reporter import Reporter
from ..protocol.worker_path.supervise_worker import is_computed
from .worker import own_reports

_BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"
_COMPILE = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    _BACKEND_COMPILE,
)
"""Events of a compilation: jax sends each as a scalar when the compilation begins, and as a
duration when it ends, even if an exception ends it."""
_WRITE_BEGINS = ("/jax/orbax/write/start", "/jax/orbax/write/async/start")
_WRITE_BLOCKED = (
    "/jax/orbax/write/blocking_duration_secs",
    "/jax/orbax/write/async/blocking_duration_secs",
)
_WRITTEN = "/jax/orbax/write/success"
_PREEMPTED = "/jax/orbax/write/preemption"
"""Sent by Orbax: jax, which handles SIGTERM itself, has told it to stop all processes at a step."""
_READ_BEGINS = ("/jax/orbax/read/start", "/jax/orbax/read/async/start")
_READ = "/jax/orbax/read/success"
_JAX = "/jax/"
_LOSSES = frozenset(("loss", "train_loss", "training_loss", "total_loss"))
_OTHER = frozenset(("eval", "evaluation", "val", "valid", "validation", "test"))
"""Parts of the name of a scalar that is no loss of the training."""
_IN_MEMORY = ("numpy", "ml_dtypes")
"""Packages whose values are in the memory of the host. Arrays of jax say whether they are."""

WORTH_TELLING = 1.0
"""Shortest compilation in seconds that is reported: a program has hundreds of shorter ones."""


class Monitor:
    """Listens to `jax.monitoring`, and reports the stages and steps that follow from its events.

    Reports nothing for a program that speaks the worker protocol itself.
    """

    def __init__(
        self,
        reporter: Reporter,
        environ: Mapping[str, str],
        learn: Callable[[], None] = lambda: None,
        on_sigterm: Callable[[], None] = lambda: None,
    ) -> None:
        """`learn` is called after compilations and saves, which may have imported new modules;
        `on_sigterm` when jax has told the program of a SIGTERM."""
        self._learn = learn
        self._on_sigterm = on_sigterm
        self._reporter = reporter
        self._tells_steps = STEPS_FROM_OUTPUT not in environ
        self._reported: Stage | None = None
        self._compiling: list[int] = []
        """For each compilation under way: id of the exception being handled when it began."""
        self._writing = False
        self._write_began: float | None = None
        self._reading = False
        self._broke_compilation = 0
        """id of the exception that last ended a compilation. Not the exception: it keeps its
        frames' memory."""

    def place(self, error: BaseException) -> tuple[Stage | None, int | None]:
        """Returns the stage that `error` comes from and the last step, for its failure record."""
        stage, step = own_reports()
        if stage is not None:
            return Stage(stage), step
        step = self._last_step
        cause: BaseException | None = error
        seen: set[int] = set()
        while cause is not None and id(cause) not in seen:  # jax makes circles
            seen.add(id(cause))
            cause = cause.__cause__ or cause.__context__
        return (Stage.COMPILING if self._broke_compilation in seen else self._reported), step

    def report_end(self, stage: str | None) -> None:
        """Report the last stage and step at the program's end; `stage` is where it failed (None: it
        succeeded, or the stage is unknown)."""
        step = self._last_step
        last = (
            Stage(stage) if stage else self._reported or (None if step is None else Stage.TRAINING)
        )
        if last is not None and self._may_name_stages():
            self._reporter.stage(last, step, inferred=True)

    def listen(self, monitoring: ModuleType) -> None:
        """Register with `jax.monitoring`, and again after all listeners are cleared, which Tunix
        does when it is done."""
        self._register(monitoring)
        clear: Callable[[], None] = monitoring.clear_event_listeners

        def clear_event_listeners() -> None:
            clear()
            self._register(monitoring)

        monitoring.clear_event_listeners = clear_event_listeners  # type: ignore[attr-defined]

    def _register(self, monitoring: ModuleType) -> None:
        monitoring.register_scalar_listener(self.on_scalar)
        monitoring.register_event_duration_secs_listener(self.on_duration)
        monitoring.register_event_listener(self.on_event)

    def on_scalar(self, event: str, value: object, **data: Any) -> None:
        """Handle a scalar event: a compilation begins, or the program reports a metric."""
        if event in _COMPILE:
            self._compiling.append(id(sys.exc_info()[1]))
            self._report_stage()
        elif "step" in data and not event.startswith(_JAX) and self._tells_steps:
            self._step(event, value, data["step"])

    def on_duration(self, event: str, seconds: float, **data: Any) -> None:
        """Handle a duration: a compilation, or the blocking part of a save, has ended."""
        if event in _COMPILE:
            self._compilation_ended()
            self._learn()
            if event == _BACKEND_COMPILE and seconds >= WORTH_TELLING and self._may_speak():
                self._reporter.compiled(seconds, str(data.get("fun_name", "")))
        elif event in _WRITE_BLOCKED:
            self._writing = False
            self._report_stage()

    def on_event(self, event: str, **data: Any) -> None:
        """Handle an event: a save or restore begins or is done, or the program is told to stop."""
        if event in _WRITE_BEGINS:
            self._writing = True
            self._write_began = monotonic()
        elif event in (*_READ_BEGINS, _READ):
            self._reading = event != _READ
        elif event == _WRITTEN:
            self._learn()
            if self._may_speak():
                began, self._write_began = self._write_began, None
                seconds = monotonic() - began if began is not None else None
                self._reporter.saved(self._last_step, seconds)
            return
        elif event == _PREEMPTED:
            self._on_sigterm()
            return
        else:
            return
        self._report_stage()

    def _compilation_ended(self) -> None:
        """Register the end of a compilation. An exception that is being handled now and was not
        when it began has ended it."""
        began_with = self._compiling.pop() if self._compiling else id(None)
        handled = id(sys.exc_info()[1])
        if handled not in (began_with, id(None)):
            self._broke_compilation = handled
        self._report_stage()

    def _report_stage(self) -> None:
        """Report the stage if it has changed."""
        if self._writing:
            stage = Stage.SAVING
        elif self._reading:
            stage = Stage.RESTORING
        elif self._compiling:
            stage = Stage.COMPILING
        else:
            stage = Stage.TRAINING
        if stage is not self._reported and self._may_name_stages():
            self._reported = stage
            self._reporter.stage(stage, inferred=True)

    def _step(self, event: str, value: object, given: Any) -> None:
        try:
            step = operator.index(given)
        except TypeError:
            return
        if step >= 0 and self._may_speak() and own_reports()[1] is None:
            loss = _number(value) if _is_training_loss(event) else None
            self._reporter.step(step, {} if loss is None else {"loss": loss})

    @property
    def _last_step(self) -> int | None:
        own = own_reports()[1]
        return self._reporter.current[1] if own is None else own

    def _may_name_stages(self) -> bool:
        return self._may_speak() and own_reports()[0] is None

    def _may_speak(self) -> bool:
        return "supervisor.protocol.reporter" not in sys.modules


def _is_training_loss(event: str) -> bool:
    """Whether a scalar is the loss of the training: not that of an evaluation, nor a part of it."""
    *before, name = event.lower().split("/")
    return name in _LOSSES and not _OTHER.intersection(before)


def _number(value: Any) -> float | None:
    """Returns `value` if it is a number that needs no wait for a device; else None."""
    package = type(value).__module__.partition(".")[0]
    is_array = package in _IN_MEMORY or hasattr(value, "is_ready")
    if not (is_array or isinstance(value, int | float)):
        return None
    try:
        is_one = getattr(value, "shape", ()) == ()
        return float(value) if is_one and is_computed(value) else None
    except Exception:  # the device has failed, or another process has a part of the array
        return None
