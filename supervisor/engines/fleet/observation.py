"""Posts how the ranks of the running attempt are, soon after each change, and every few seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from supervisor.core.events import WorkersObserved
from supervisor.engines.fleet.fleet_attempt import FleetAttempt
from supervisor.engines.fleet.fleet_means import Means

INTERVAL = 5.0
"""Seconds between two observations without news."""
_PAUSE = 0.05
"""Seconds between two observations that are news: thousands of ranks may end at once."""


class Observation:
    """Observes the attempt that `is_observed` is true of: one whose ranks were all started."""

    def __init__(self, means: Means, is_observed: Callable[[FleetAttempt], bool]) -> None:
        self._means = means
        self._is_observed = is_observed
        self._at = -_PAUSE
        self._is_due = False
        """Whether the next observation is on its way."""

    def soon(self, attempt: FleetAttempt) -> None:
        """Post how the ranks are: now, or in a moment, if that was just done."""
        left = self._at + _PAUSE - self._means.clock.now()
        if left <= 0.0:
            self.now(attempt)
        elif not self._is_due:
            self._is_due = True
            self._means.reactor.call_later(left, partial(self.now, attempt))

    def now(self, attempt: FleetAttempt) -> None:
        """Post how the ranks are, if they were started."""
        self._is_due = False
        if self._is_observed(attempt):
            now, redact = self._means.clock.now(), self._means.redact
            self._at = now
            survivors = tuple(one for each in attempt.survivors.values() for one in each)
            told = tuple(replace(each, command=redact(each.command)) for each in survivors)
            seen = WorkersObserved(now, attempt.number, attempt.pids, attempt.exits, told)
            self._means.post(seen)
