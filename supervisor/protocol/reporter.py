"""The worker's end of the progress pipe.

Reporting must not slow a trainer down. Sending never blocks and never raises: while the pipe is
full, a step is dropped, and any other message is kept for the next call (the newest 64 are kept). A
step that comes too soon after the last one sent costs one reading of the clock. Without a
supervisor every call does nothing.

The pipe itself is in `worker_path.supervise_worker`, a single file that any program can use: what
is sent safely is sent by that code alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import SupportsFloat

from .loss_spikes import LossSpike
from .messages import (
    AdjustableMessage,
    CompiledMessage,
    DevicesMessage,
    EvaluatedMessage,
    HostTimeMessage,
    Message,
    NoticeMessage,
    RestoredMessage,
    SavedMessage,
    SavesOnRequestMessage,
    StacksMessage,
    Stage,
    StageMessage,
    StepMessage,
    WrongDeviceMessage,
    encode,
)
from .worker_path.supervise_worker import ProgressPipe, progress_descriptor

_NEVER = float("inf")


class Reporter:
    """Reports on the progress pipe what this worker does. Thread-safe."""

    def __init__(
        self,
        descriptor: int | None,
        *,
        step_interval: float = 0.1,
        on_stage: Callable[[Stage], None] = lambda stage: None,
    ) -> None:
        """Report on `descriptor` (None: nowhere), a step at most every `step_interval` seconds.

        `on_stage` is called with each entered stage, after it was reported. What it raises, `stage`
        raises.
        """
        self._pipe = ProgressPipe(descriptor)
        self._interval = step_interval
        self._on_stage = on_stage
        self._next_step_at = 0.0 if self._pipe.is_open else _NEVER
        self._stage = Stage.STARTING
        self._step: int | None = None
        self._told: int | None = None

    @classmethod
    def connect(
        cls,
        environ: Mapping[str, str] = os.environ,
        *,
        on_stage: Callable[[Stage], None] = lambda stage: None,
    ) -> Reporter:
        """Return the reporter of this process. Without a supervisor's pipe it reports nothing."""
        return cls(progress_descriptor(environ), on_stage=on_stage)

    @property
    def current(self) -> tuple[Stage, int | None]:
        """Return the stage entered last and the last completed step, for failure records."""
        return self._stage, self._step

    def stage(self, stage: Stage, step: int | None = None, *, inferred: bool = False) -> None:
        """Report that `stage` was entered. While the pipe is full, the message is kept."""
        self._stage = stage
        if step is not None:
            self._step = step
        if self._pipe.is_open:
            self._next_step_at = 0.0
            self._told = step
        self._send(StageMessage(stage, step, inferred), keep=True)
        self._on_stage(stage)

    def step(
        self,
        step: int,
        metrics: Mapping[str, SupportsFloat] | None = None,
        *,
        always: bool = False,
    ) -> None:
        """Report that optimizer step `step` is complete. Its metrics are converted to float only if
        the step is sent; `always`: send it, also if it comes soon after the last one."""
        self._step = step
        now = monotonic()
        if now < self._next_step_at and not (always and self._pipe.is_open):
            return
        self._next_step_at = now + self._interval if self._pipe.is_open else _NEVER
        values = {name: float(value) for name, value in (metrics or {}).items()}
        self._told = step
        self._send(StepMessage(step, values), keep=False)

    def catch_up(self) -> None:
        """Report the last completed step if it came too soon to be sent. For the end: so the
        supervisor knows how far a program came that fails."""
        if self._step is not None and self._step != self._told:
            self._told = self._step
            self._send(StepMessage(self._step), keep=False)

    def restored(self, step: int | None, *, snapshot: bool = False) -> None:
        """Report that the state of `step` was restored (None: a fresh start), from a `snapshot` in
        memory or from a committed checkpoint."""
        self._send(RestoredMessage(step, snapshot), keep=True)

    def saved(self, step: int | None, seconds: float | None = None) -> None:
        """Report that a checkpoint was committed: its `step`, and how many `seconds` the save took
        (None: unknown)."""
        self._send(SavedMessage(step, seconds), keep=True)

    def evaluated(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Report that the evaluation after `step` is complete."""
        values = {name: float(value) for name, value in metrics.items()}
        self._send(EvaluatedMessage(step, values), keep=True)

    def devices(self, platform: str, count: int, device_kind: str) -> None:
        """Report the accelerators that the backend found."""
        self._send(DevicesMessage(platform, count, device_kind), keep=True)

    def adjustable(self, names: Sequence[str]) -> None:
        """Declare what the supervisor may ask the next attempt to adjust (`adjustments`)."""
        self._send(AdjustableMessage(tuple(names)), keep=True)

    def saves_on_request(self) -> None:
        """Declare that this program saves when a person asks for it (`save_request`)."""
        self._send(SavesOnRequestMessage(), keep=True)

    def compiled(self, seconds: float, name: str, source: str = "") -> None:
        """Report that `name` was compiled within `seconds`, or loaded from `source`."""
        self._send(CompiledMessage(seconds, name, source), keep=True)

    def notice(self, text: str, code: str = "", step: int | None = None) -> None:
        """Send `text` to the supervisor's log, for people. Tools read `code`, lower-case words with
        hyphens, and the `step` that it is about."""
        self._send(NoticeMessage(text, code, step), keep=True)

    def host_time(self, seconds: float, step_seconds: float) -> None:
        """Report how long a step takes this host before the devices begin, and as a whole."""
        self._send(HostTimeMessage(seconds, step_seconds), keep=False)

    def wrong_device(self, step: int, rank: int, device: int, text: str) -> None:
        """Report a device that computes wrongly without an error: see `WrongDeviceMessage`."""
        self._send(WrongDeviceMessage(step, rank, device, text), keep=True)

    def loss_spike(self, spike: LossSpike) -> None:
        """Report a loss that stands out from those before it."""
        self._send(spike, keep=True)

    def dumps_stacks(self) -> None:
        """Declare that this process dumps its stacks on request."""
        self._send(StacksMessage(), keep=True)

    def _send(self, message: Message, *, keep: bool) -> None:
        if self._pipe.is_open:
            self._pipe.send(encode(message), keep=keep)
