"""Checks the stage times that are told of an attempt: no second is missing, and no flood is
told."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.core.decisions import TellStages
from supervisor.core.events import SupervisorStarted, WorkerReported
from supervisor.core.stage_times import CHANGES
from supervisor.ports import Transition


class StageTimesCheck:
    """Checks the stages of one attempt after the other."""

    def __init__(self, require: Callable[[bool, str], None]) -> None:
        self._require = require
        self._since = self._now = 0.0
        """When the supervisor started, and the latest time of an event."""
        self._changes = 0
        """How many changes of stage the supervisor has told."""
        self._began: float | None = None
        """When the attempt began; None: the supervisor has told of no attempt that runs."""
        self._seconds = 0.0

    def after(self, transition: Transition) -> None:
        """Check a transition."""
        event, stages = transition.event, transition.before.stages
        if isinstance(event, SupervisorStarted):
            self._since, self._now, self._changes, self._began = event.at, event.at, 0, None
        self._now = max(self._now, event.at)
        for told in transition.decisions:
            if isinstance(told, TellStages):
                self._seconds += sum(told.seconds.values())
                self._changes += isinstance(event, WorkerReported)
        most = CHANGES.at_once + (self._now - self._since) * CHANGES.per_second
        self._require(self._changes <= most, "a flood of changes is told")
        if self._began is not None and transition.after.stages.mark is None:
            whole = max(event.at, stages.mark or 0.0) - self._began
            self._require(abs(self._seconds - whole) < 1e-3, "a second of an attempt is not told")
            self._began = None
        elif self._began is None and transition.after.stages.mark is not None:
            self._began, self._seconds = transition.after.stages.mark, 0.0
