"""How fast the job gets on: a fold over its transitions, for what shows a job while it runs.

That is the live view and status.json. All of it is volatile: a new supervisor begins anew, but for
the time of the last commit, which is in the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from supervisor.core.events import (
    PhaseBegun,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersStarted,
)
from supervisor.ports import Transition
from supervisor.protocol import metrics_file
from supervisor.protocol.messages import StepMessage, StepsDroppedMessage

LONG_AGO = 10.0
"""Seconds after which it is told beside a step how old it is."""
_WINDOW = 60.0
"""Seconds of reports from which the steps per second are computed."""
_FEWEST = 10
"""Reports that are kept in any case: a step may take longer than the window."""
_SPACING = 0.5
"""Least seconds between two reports that are kept: there may be thousands a second."""
_MAX_LOSSES = 256
"""Losses that are kept: with one more, every second one is left out."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the attempt has come, at one moment."""

    step: int | None = None
    """The last completed step; None: the attempt has reported none."""
    step_at: datetime | None = None
    """When `step` was reported; None: not known."""
    loss: float | None = None
    steps_per_second: float | None = None
    """None: too few steps were reported, or none for longer than those that count took."""
    eta_seconds: float | None = None
    """Seconds until the last step of the phase; None: not known."""
    data_wait: float | None = None
    """The share of the time in which training waits for data; None: not known."""
    mfu: float | None = None
    """The model FLOPs utilisation; None: not known."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What the reports of the attempt tell so far; what that means depends on the moment."""

    step: int | None = None
    step_at: datetime | None = None
    heard_at: float | None = None
    """When `step` was reported, on our clock; None: not known."""
    loss: float | None = None
    use: tuple[float | None, ...] = (None, None)
    """The values of `metrics_file.DEVICE_USE`."""
    first: tuple[float, int] = (0.0, 0)
    last: tuple[float, int] = (0.0, 0)
    """Time and step of the first and of the last report from which the rate is computed."""
    gaps: int = 0
    """How many pauses are between these two reports."""

    def at(self, now: float, max_steps: int | None) -> Progress:
        """Returns the progress at the time `now` on our clock; `max_steps` is the last step of the
        phase, None: not known."""
        rate, eta = self._rate(now), None
        if rate and self.step is not None and max_steps is not None:
            eta = max(0, max_steps - self.step) / rate
        return Progress(self.step, self.step_at, self.loss, rate, eta, *self.use)

    def age(self, now: float) -> float | None:
        """Returns how many seconds ago the step was reported; None: not known."""
        return None if self.heard_at is None else now - self.heard_at

    def _rate(self, now: float) -> float | None:
        """Returns the steps per second. It falls while the next report is overdue. None: there are
        too few, or it was silent for longer than all that they took."""
        (start, first), (end, last) = self.first, self.last
        if not self.gaps or now - end > max(_WINDOW, end - start):
            return None
        seconds = max(end - start, (now - start) * self.gaps / (self.gaps + 1))
        return (last - first) / seconds if seconds > 0 and last > first else None


class PaceWatch:
    """Follows the reports of the attempt that runs."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._step_at: datetime | None = None
        self._heard_at: float | None = None
        self._loss: float | None = None
        self._how: dict[str, float] = {}
        """How the steps are run, as it was reported last."""
        self._reports: deque[tuple[float, int]] = deque()
        """Times on our clock and steps, with a spacing."""
        self._losses: list[float] = []
        self._stride = 1
        """How many reported losses one of those that are kept stands for."""
        self._skipped = 0
        self.committed_at: datetime | None = None
        """When a checkpoint of the phase was last seen committed; None: not known."""

    def restore(self, transitions: Iterable[Transition]) -> None:
        """Take in what earlier supervisors saw."""
        self.committed_at = last_commit(transitions)

    def observe(self, told: Transition) -> None:
        """See `ports.Observer`."""
        match told.event:
            case WorkerReported(at, _, _, StepMessage(step, metrics)):
                self._how.update(
                    {name: metrics[name] for name in metrics_file.DEVICE_USE if name in metrics}
                )
                self._heard(at, step, metrics.get("loss"))
                self._step_at, self._heard_at = told.wall, at
            case WorkerReported(_, _, _, StepsDroppedMessage()):
                self._forget()
            case WorkersStarted():
                self._step = self._step_at = self._heard_at = self._loss = None
                self._how.clear()
            case WorkersGone(step=step):
                self._reports.clear()
                if step not in (None, self._step):  # not each step has a report of its own
                    self._step, self._step_at, self._heard_at = step, None, None
            case PhaseBegun():
                self._forget()
        self.committed_at = _committed_at(self.committed_at, told)

    def pace(self) -> Pace:
        """Returns what the reports tell so far."""
        use = tuple(map(self._how.get, metrics_file.DEVICE_USE))
        pace = Pace(self._step, self._step_at, self._heard_at, self._loss, use)
        if len(self._reports) < 2:
            return pace
        first, last, gaps = self._reports[0], self._reports[-1], len(self._reports) - 1
        return replace(pace, first=first, last=last, gaps=gaps)

    def losses(self) -> list[float]:
        """Returns the losses of the phase, the oldest first, thinned out evenly."""
        return list(self._losses)

    def _heard(self, at: float, step: int, loss: float | None) -> None:
        self._step = step
        if len(self._reports) > 1 and at - self._reports[-2][0] < _SPACING:
            self._reports.pop()
        self._reports.append((at, step))
        while len(self._reports) > _FEWEST and at - self._reports[0][0] > _WINDOW:
            self._reports.popleft()
        if loss is not None:
            self._loss = loss
            self._keep(loss)

    def _keep(self, loss: float) -> None:
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self._losses.append(loss)
        if len(self._losses) > _MAX_LOSSES:
            self._losses, self._stride = self._losses[::2], 2 * self._stride

    def _forget(self) -> None:
        self._step = self._step_at = self._heard_at = self._loss = None
        self._how.clear()
        self._reports.clear()
        self._losses.clear()
        self._stride, self._skipped = 1, 0


def last_commit(transitions: Iterable[Transition]) -> datetime | None:
    """Returns when a checkpoint of the present phase was last seen committed; None: not by these
    transitions."""
    at = None
    for each in transitions:
        at = _committed_at(at, each)
    return at


def _committed_at(before: datetime | None, told: Transition) -> datetime | None:
    """Returns the time of the last commit after one more transition. What a supervisor finds when
    it starts was committed some time before."""
    if isinstance(told.event, PhaseBegun):
        return None
    newest = told.after.newest
    is_new = newest is not None and newest != told.before.newest
    return told.wall if is_new and not isinstance(told.event, SupervisorStarted) else before
