"""Keeps what a command reports of its steps in metrics.jsonl; our trainer writes its own.

One rank is enough: the lowest that reports steps. It gets one line a second at most, with what it
reported last, and as many for evaluations. When the file is full, every second line goes, and lines
come half as often from then on: the whole run stays visible, in less detail.

A command may go on from any step, and need not say so. So a step that was reported before
supersedes the line of that step and all lines after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from supervisor.config.plan import PhasePlan
from supervisor.core.events import WorkerReported, WorkersGone
from supervisor.host.notice import Tell
from supervisor.host.unwritable import UnwritableOnce
from supervisor.ports import Transition
from supervisor.protocol import metrics_file
from supervisor.protocol.messages import EvaluatedMessage, StepMessage, StepsDroppedMessage

LIMIT = 32 << 20
"""Bytes; a larger file is thinned out. At 130 bytes a line these are three days."""
_INTERVAL = 1.0
"""Seconds between two lines of a kind."""


class MetricsKeeper:
    """See `ports.Observer`."""

    def __init__(
        self,
        model_dir: Path,
        plans: Sequence[PhasePlan],
        redact: Callable[[str], str],
        tell: Tell,
        limit: int = LIMIT,
    ) -> None:
        """`redact` removes secrets from the names that a program gives to its numbers."""
        self._path = model_dir / metrics_file.NAME
        self._plans = plans
        self._redact = lru_cache(maxsize=1000)(redact)
        self._file = UnwritableOnce(metrics_file.NAME, "cannot be written: {}", tell)
        self._limit = limit
        self._interval = _INTERVAL
        self._attempt = 0
        self._rank = 0
        """The rank of the attempt whose reports are kept."""
        self._step: int | None = None
        """The last step that it has reported in this attempt; None: none yet."""
        self._held: dict[type, bytes] = {}
        """By kind of report, a line that came too soon after the one before it."""
        self._due: dict[type, float] = {}

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        event = transition.event
        if isinstance(event, WorkersGone):
            self._write_held()
        elif isinstance(event, WorkerReported) and self._plan(transition).is_command:
            match event.message:
                case StepMessage() | EvaluatedMessage() if self._is_heard(event):
                    self._take(event, event.message, transition)
                case StepsDroppedMessage():
                    self._drop(event.attempt)

    def _plan(self, transition: Transition) -> PhasePlan:
        return self._plans[min(transition.after.phase, len(self._plans) - 1)]

    def _is_heard(self, event: WorkerReported) -> bool:
        """Whether reports of this rank are kept: no lower one has reported in this attempt."""
        if event.attempt > self._attempt:
            self._write_held()
            self._attempt, self._rank, self._step = event.attempt, event.rank, None
        self._rank = min(self._rank, event.rank)
        return event.attempt == self._attempt and event.rank == self._rank

    def _take(
        self, event: WorkerReported, message: StepMessage | EvaluatedMessage, seen: Transition
    ) -> None:
        phase, measured = self._plan(seen).name, message.metrics
        if isinstance(message, StepMessage):
            if self._step is None or message.earliest <= self._step:
                self._supersede(phase, message.earliest)
            self._step = message.step
        else:
            measured = {f"{metrics_file.EVALUATION}{name}": one for name, one in measured.items()}
        line = metrics_file.encoded(
            seen.wall.timestamp(), phase, event.attempt, message.step, self._clean(measured)
        )
        kind = type(message)
        if event.at < self._due.get(kind, event.at):
            self._held[kind] = line
            return
        self._held.pop(kind, None)
        self._due[kind] = event.at + self._interval
        self._write(line)

    def _clean(self, measured: Mapping[str, float]) -> dict[str, float]:
        return {self._redact(name): value for name, value in measured.items()}

    def _supersede(self, phase: str, first: int) -> None:
        self._held.pop(StepMessage, None)
        self._file.attempt(
            lambda: metrics_file.cut(
                self._path, lambda line: line.get("phase") == phase and line["step"] >= first
            )
        )

    def _drop(self, attempt: int) -> None:
        """Drop the lines of the attempt: what was taken for its steps was none."""
        self._held.clear()
        self._step = None
        self._file.attempt(
            lambda: metrics_file.cut(self._path, lambda line: line.get("attempt") == attempt)
        )

    def _write_held(self) -> None:
        held, self._held = self._held, {}
        for line in held.values():
            self._write(line)

    def _write(self, line: bytes) -> None:
        self._file.attempt(lambda: metrics_file.append(self._path, line))
        if metrics_file.size(self._path) > self._limit:
            self._interval *= 2
            self._file.attempt(lambda: metrics_file.thin_out(self._path))
