"""Tells the supervisor what a training loop does, and tells the loop when to stop.

    import supervise_worker

    for n in range(start, end):
        loss = train(n)
        supervise_worker.step(n, loss=loss)
        if supervise_worker.should_stop():
            save(n)
            supervise_worker.saved(n)
            break
        if supervise_worker.should_save():
            save(n)
            supervise_worker.saved(n)

This file has no dependencies and may be copied. It needs Python 3.9 or later.

Without a supervisor, in a child of the worker, and once the supervisor is gone, no call has any
effect. No call waits, also not for a device. What a call is given never raises an exception: a call
that cannot be understood is ignored, and the first one is told in run.log. Calls may come from any
thread and from signal handlers.
"""

from __future__ import annotations

import atexit
import json
import operator
import os
import stat
import sys
import threading
from collections import deque
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import FrameType
    from typing import Any, TypeVar

    _Batch = TypeVar("_Batch")

__all__ = [
    "STAGES",
    "current",
    "hugging_face_callback",
    "orbax_manager",
    "saved",
    "should_save",
    "should_stop",
    "stage",
    "step",
    "until_stop",
]

STAGES = (
    "STARTING",
    "INITIALIZING",
    "RESTORING",
    "COMPILING",
    "TRAINING",
    "EVALUATING",
    "SAVING",
    "FINISHING",
)
STEP_INTERVAL = 0.1
"""Seconds from a step that is sent to the next one."""
LOOK_INTERVAL = 0.25
"""Seconds from a look for a request to save to the next one."""
_MAX_STEP = 2**62
_MAX_PENDING = 64
_MAX_TEXT = 300
"""Most characters of a notice: JSON may write each as twelve bytes, and a line has 4096."""
_NEVER = float("inf")
_BEFORE_FORCE = 3
"""Arguments of Orbax's `save` between `step` and `force`."""


def progress_descriptor(environ: Mapping[str, str]) -> int | None:
    """Return the descriptor that `environ` names, set not to block; None: there is no supervisor.

    A child process may inherit the number and have opened something else under it. So the identity
    of the pipe is compared, too.
    """
    number = environ.get("SUPERVISE_PROGRESS_FD", "")
    if not number.isdecimal():
        return None
    descriptor = int(number)
    try:
        status = os.fstat(descriptor)
    except (OSError, OverflowError):
        return None
    identity = f"{status.st_dev}:{status.st_ino}"
    if identity != environ.get("SUPERVISE_PROGRESS_PIPE") or not stat.S_ISFIFO(status.st_mode):
        return None
    os.set_blocking(descriptor, False)
    return descriptor


class ProgressPipe:
    """The write end of the pipe to the supervisor.

    `send` never waits and never raises. A signal handler that interrupts it may call it again.
    """

    def __init__(self, descriptor: int | None) -> None:
        """Write to `descriptor`, which does not block; None: there is no supervisor."""
        self._descriptor = descriptor
        self._pid = os.getpid()
        self._pending: deque[bytes] = deque(maxlen=_MAX_PENDING)
        self._lock = threading.RLock()
        self._is_writing = False

    @property
    def is_here(self) -> bool:
        """Whether this is still the process that has connected, and no forked child."""
        return os.getpid() == self._pid

    @property
    def is_open(self) -> bool:
        """Whether there is a supervisor, and this is the process that it has started."""
        return self._descriptor is not None and self.is_here

    def send(self, line: bytes, *, keep: bool) -> None:
        """Write `line`, of at most 4096 bytes. While the pipe is full, it is kept for the next call
        (of such lines the newest 64) or dropped."""
        if not self.is_open:
            return
        with self._lock:
            if keep:
                self._pending.append(line)
            if self._is_writing:  # this is a signal handler: the code that it interrupted goes on
                return
            self._is_writing = True
            try:
                if self._flush() and not keep:
                    self._write(line)
                    self._flush()
            finally:
                self._is_writing = False

    def _flush(self) -> bool:
        """Write what was kept; returns whether nothing is left."""
        while self._pending:
            line = self._pending.popleft()
            if not self._write(line):
                self._pending.appendleft(line)
                return False
        return True

    def _write(self, line: bytes) -> bool:
        """Write a line as a whole; False: the pipe is full."""
        if self._descriptor is None:
            return True
        try:
            os.write(self._descriptor, line)
        except BlockingIOError:
            return False
        except OSError:  # the supervisor is gone, and this process will end in a moment
            self._descriptor = None
        return True


class _Worker:
    """This process, as the supervisor's worker."""

    def __init__(self, pipe: ProgressPipe) -> None:
        self.pipe = pipe
        self.number: Any = None
        """The last completed step, as it was given."""
        self.stage: tuple[str, bool] | None = None
        """The stage entered last, and whether it was only inferred."""
        self.names_stages = False
        self._sent: int | None = None
        self._next_step_at = 0.0 if pipe.is_open else _NEVER
        self._waiting_loss: Any = None
        self._complained = False
        self._watches = False
        self._stop = False
        self._request = ""
        self._answered: tuple[int, int] | None = None
        self._next_look = 0.0 if pipe.is_open else _NEVER
        self._former_handler: Any = None

    def step(self, number: Any, loss: Any) -> None:
        self.number = number
        now = monotonic()
        if now < self._next_step_at:
            return
        if self.stage is None:  # the program promises nothing about the time between its steps
            self._enter("TRAINING", None, inferred=True)
        self._next_step_at = now + STEP_INTERVAL if self.pipe.is_open else _NEVER
        try:
            checked = _checked_step(number)
            value = self._finished(loss)
        except Exception as error:
            self.complain(f"step({type(number).__name__}, loss={type(loss).__name__})", error)
        else:
            metrics = {} if value is None else {"loss": value}
            self._sent = checked
            self._send(False, kind="step", step=checked, metrics=metrics)

    def enter(self, name: str, *, inferred: bool) -> None:
        if name not in STAGES:
            raise ValueError(f"{name!r} is none of {', '.join(STAGES)}")
        self._sent = self.last_step
        self._enter(name, self._sent, inferred=inferred)

    def _enter(self, name: str, step: int | None, *, inferred: bool) -> None:
        self.stage = name, inferred
        self.names_stages |= not inferred
        if self.pipe.is_open:
            self._next_step_at = 0.0
        self._send(True, kind="stage", stage=name, step=step, inferred=inferred)

    def saved(self, number: Any) -> None:
        try:
            checked = None if number is None else _checked_step(number)
        except Exception as error:
            self.complain(f"saved({type(number).__name__})", error)
        else:
            self._send(True, kind="saved", step=checked, seconds=None)

    def should_stop(self) -> bool:
        if not self._watches and self.pipe.is_open:
            self._watch_sigterm()
        return self._stop

    def should_save(self) -> bool:
        now = monotonic()
        if now < self._next_look or not self.pipe.is_open:
            return False
        self._next_look = now + LOOK_INTERVAL
        if not self._request:
            self._request = os.environ.get("SUPERVISE_SAVE_REQUEST", "")
            if not self._request:  # an older supervisor, which asks nobody
                self._next_look = _NEVER
                return False
            self._send(True, kind="saves_on_request")
        try:
            found = os.stat(self._request)
        except OSError:
            return False
        before, self._answered = self._answered, (found.st_ino, found.st_mtime_ns)
        return self._answered != before

    def finish(self) -> None:
        """Send the last step, if it came too soon after the one before it."""
        last = self.last_step
        if last is not None and last != self._sent:
            self._send(True, kind="step", step=last, metrics={})

    def complain(self, call: str, why: object) -> None:
        """Have run.log tell, once, that a call was ignored."""
        if not self._complained:
            self._complained = True
            reason = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why
            text = f"supervise_worker.{call} is ignored: {reason}"[:_MAX_TEXT]
            self._send(True, kind="notice", text=text, code="worker-call-ignored", step=None)

    @property
    def last_step(self) -> int | None:
        """The last completed step; None: there is none, or it was not given as a whole number."""
        try:
            return None if self.number is None else _checked_step(self.number)
        except Exception:
            return None

    def _send(self, keep: bool, **body: Any) -> None:
        line = json.dumps({"v": 1, **body}, separators=(",", ":")).encode() + b"\n"
        self.pipe.send(line, keep=keep)

    def _finished(self, loss: Any) -> float | None:
        """Return a loss that is computed: this one, or else an earlier one, or else None."""
        earlier, self._waiting_loss = self._waiting_loss, None
        if loss is not None and is_computed(loss):
            return float(loss)
        if earlier is not None and not is_computed(earlier):
            self._waiting_loss = earlier
            return None
        self._waiting_loss = loss
        return None if earlier is None else float(earlier)

    def _watch_sigterm(self) -> None:
        import signal

        if threading.current_thread() is not threading.main_thread():
            self.complain("should_stop()", "its first call must be in the main thread")
            return
        self._watches = True
        former = signal.getsignal(signal.SIGTERM)
        if former in (signal.SIG_DFL, None) and _is_caught(signal.SIGTERM):
            why = (
                "a library handles SIGTERM outside Python, as jax.distributed does: ask "
                "manager.reached_preemption(step) of Orbax instead"
            )
            self.complain("should_stop()", why)
            return
        self._former_handler = former
        signal.signal(signal.SIGTERM, self._on_sigterm)
        os.register_at_fork(after_in_child=self._give_sigterm_back)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if not self.pipe.is_here:  # a child that was forked outside Python
            self._give_sigterm_back()
            os.kill(os.getpid(), number)
            return
        self._stop = True
        self._send(True, kind="sigterm")
        if callable(self._former_handler):
            self._former_handler(number, frame)

    def _give_sigterm_back(self) -> None:
        """In a forked child: let SIGTERM do what it did before, such as end a data loader."""
        import signal

        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, self._former_handler or signal.SIG_DFL)


class _Entered:
    """What `stage` returns: a context manager that ends the stage."""

    def __init__(self, worker: _Worker, before: tuple[str, bool] | None) -> None:
        """`before` is the stage that goes on afterwards; None: the stage was not entered."""
        self._worker = worker
        self._before = before

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self._before is not None:  # a failure was in this stage
            name, inferred = self._before
            self._worker.enter(name, inferred=inferred)


_worker: _Worker | None = None
"""Made at the first call: a standby imports this module before it has a pipe."""


def connect(environ: Mapping[str, str]) -> _Worker:
    """Connect to the supervisor that `environ` names. The first call of any function does this."""
    global _worker
    _worker = _Worker(ProgressPipe(progress_descriptor(environ)))
    if _worker.pipe.is_open:
        atexit.register(_worker.finish)
    return _worker


def _this_worker() -> _Worker:
    return _worker or connect(os.environ)


def step(number: int, loss: Any = None) -> None:
    """Report that optimizer step `number` is complete, with its loss if you like.

    A call that comes within 0.1 s of a report is not sent and takes less than a microsecond; the
    last step of the program is always sent. `loss` is a float or a scalar array. An array that a
    device still computes is not waited for: the loss of an earlier step is sent in its place. The
    live view shows it.
    """
    (_worker or connect(os.environ)).step(number, loss)


def stage(name: str) -> _Entered:
    """Report that the program enters a stage, such as "SAVING".

    As a context manager (`with stage("SAVING"):`) it also reports the end of the stage: then the
    stage before it goes on. Every stage has its own time limit. The names are in `STAGES`.
    """
    worker = _this_worker()
    before = worker.stage or ("TRAINING", True)
    try:
        worker.enter(name, inferred=False)
    except Exception as error:
        worker.complain("stage(...)", error)
        return _Entered(worker, None)
    return _Entered(worker, before)


def should_stop() -> bool:
    """Return True once the program should save and exit, because of a drain or a preemption.

    The first call handles SIGTERM from then on, in the main thread; a handler that the program had
    set before is called, too. Exit with code 0 after the save.
    """
    return _this_worker().should_stop()


def should_save() -> bool:
    """Return True once each time that a person asks for a checkpoint (`supervise save`).

    Save then, call `saved`, and train on. A call that comes within 0.25 s of a look takes less than
    a microsecond. Of several processes that save together, ask in one, and tell the others.
    """
    return _this_worker().should_save()


def saved(number: int | None = None) -> None:
    """Report that the checkpoint of step `number` is committed; the supervisor looks at once."""
    _this_worker().saved(number)


def current() -> tuple[str | None, int | None]:
    """Return the stage that the program named last and the last completed step.

    None: it has named no stage, or no step is complete.
    """
    if _worker is None:
        return None, None
    named = _worker.stage if _worker.names_stages else None
    return named[0] if named is not None else None, _worker.last_step


def until_stop(batches: Iterable[_Batch]) -> Iterator[_Batch]:
    """Yield `batches`, and end once `should_stop` is True.

    For trainers that save when their data ends, such as Tunix: `trainer.train(until_stop(data))`.
    """
    for batch in batches:
        if should_stop():
            return
        yield batch


def hugging_face_callback() -> Any:
    """Return a callback for the `Trainer` of Hugging Face.

    It reports steps, losses, evaluations and saves. When `should_stop` is True, it has the trainer
    save and end.
    """
    from transformers import TrainerCallback

    class SuperviseCallback(TrainerCallback):  # type: ignore[misc]
        """Reports to the supervisor. `control` says what the trainer does next."""

        _loss: float | None = None

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            self._loss = (logs or {}).get("loss", self._loss)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            step(state.global_step, loss=self._loss)
            _do_as_asked(control)
            return self._name_next(control)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            return self._name_next(control)

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            _trains_again()
            return self._name_next(control)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            saved(state.global_step)
            _trains_again()

        def _name_next(self, control: Any) -> Any:
            if control.should_evaluate:
                stage("EVALUATING")
            elif control.should_save:
                stage("SAVING")
            return control

    return SuperviseCallback()


def orbax_manager(manager: Any) -> Any:
    """Return a proxy for `manager`, a `CheckpointManager` of Orbax, that also reports.

    `save(step, ...)` reports the step. When `should_stop` or `should_save` is True, it saves this
    step in any case, and waits for the commit. `reached_preemption(step)` is also True when
    `should_stop` is. Several processes that save together are only reported: ask
    `reached_preemption` there. Call this in the main thread.
    """
    return _OrbaxManager(manager)


class _OrbaxManager:
    """What `orbax_manager` returns. What it does not have itself is that of the manager."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        should_stop()  # from now on SIGTERM is handled

    def __getattr__(self, name: str) -> Any:
        if name == "_manager":  # a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self._manager, name)

    def __enter__(self) -> Any:
        self._manager.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._manager.__exit__(*error)

    def save(self, step: int, *args: Any, **options: Any) -> bool:
        """Save as the manager does, and in any case when that is asked for."""
        _this_worker().step(step, None)
        is_wanted = self._is_wanted(step)
        is_forced = any(args[_BEFORE_FORCE : _BEFORE_FORCE + 1]) or options.get("force")
        if is_wanted and len(args) > _BEFORE_FORCE:
            args = (*args[:_BEFORE_FORCE], True, *args[_BEFORE_FORCE + 1 :])
        elif is_wanted:
            options["force"] = True
        elif not is_forced and not self._manager.should_save(step):
            return bool(self._manager.save(step, *args, **options))  # it saves nothing
        with stage("SAVING"):
            is_saved = bool(self._manager.save(step, *args, **options))
            if is_wanted:
                self._manager.wait_until_finished()
        if is_wanted and is_saved:
            saved(step)
        return is_saved

    def should_save(self, step: int) -> bool:
        """Whether `save` would save this step."""
        return (_is_alone() and should_stop()) or bool(self._manager.should_save(step))

    def reached_preemption(self, step: int) -> bool:
        """Whether the program is to end after this step."""
        is_told = bool(self._manager.reached_preemption(step))  # all processes must ask
        return is_told or (_is_alone() and should_stop())

    def _is_wanted(self, step: int) -> bool:
        if not _is_alone():
            return False
        latest = self._manager.latest_step()
        if latest is not None and latest >= step:
            return False  # without asking `should_save`, which tells of a request only once
        return should_stop() or should_save()


def _is_alone() -> bool:
    jax = sys.modules.get("jax")
    return jax is None or jax.process_count() == 1


def _do_as_asked(control: Any) -> None:
    if should_stop():
        control.should_save = control.should_training_stop = True
    elif should_save():
        control.should_save = True


def _trains_again() -> None:
    _this_worker().enter("TRAINING", inferred=True)


def _checked_step(number: Any) -> int:
    if not is_computed(number):
        raise ValueError("a device still computes the step: count in Python")
    checked = operator.index(number)
    if not 0 <= checked <= _MAX_STEP:
        raise ValueError(f"{checked} is no step: steps count from 0")
    return checked


def is_computed(value: Any) -> bool:
    """Whether reading `value` does not wait for a device; arrays of jax say so."""
    is_ready = getattr(value, "is_ready", None)
    return is_ready is None or bool(is_ready())


def _is_caught(number: int) -> bool:
    """Whether this process handles the signal `number`, as the kernel knows."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    except OSError:
        return False
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
