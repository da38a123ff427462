"""How often the job fails: what the next attempt is told of the ones before it.

All events that it follows are in the journal, so a replay gives the same value. It is kept through
all phases and after the job has ended: machines fail whatever they compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from supervisor.protocol.failure_history import FailureHistory


@dataclass(frozen=True, slots=True)
class FailureRate:
    """The failures so far, and the time in which they came. Times are seconds on the supervisor's
    clock."""

    history: FailureHistory = field(default_factory=FailureHistory)
    """What the next attempt is told."""
    mark: float | None = None
    """The time up to which the present workers are counted in `history`; None: none run."""

    def started(self, at: float) -> FailureRate:
        """Returns the rate once the workers of an attempt run."""
        return replace(self, mark=at)

    def ran(self, at: float) -> FailureRate:
        """Returns the rate with the time until `at` counted (0 for a late event)."""
        if self.mark is None or at <= self.mark:
            return self
        seconds = self.history.seconds + at - self.mark
        return FailureRate(replace(self.history, seconds=seconds), at)

    def gone(self, at: float) -> FailureRate:
        """Returns the rate after the workers have ended."""
        return replace(self.ran(at), mark=None)

    def failed(self) -> FailureRate:
        """Returns the rate after one more failure."""
        history = replace(self.history, failures=self.history.failures + 1)
        return replace(self, history=history)

    def on_another_clock(self) -> FailureRate:
        """Returns the rate under another supervisor: nobody knows when its workers ended."""
        return replace(self, mark=None)
