"""How long an attempt is in which stage, and how far it has come: what the time of a job went into.

A fold over what the workers report. Each change of stage is told by a decision, `TellStages`; so
are each new checkpoint and the end of the attempt, and all of that is in the journal. Each tells
the seconds in every stage since the one before it: together they are the whole attempt.

A worker that changes its stage without end does not fill the journal. Where the `Allowance` is
used up, a change is not told; the next that is told counts those before it, and has their seconds.

Volatile: what was not told yet when a supervisor dies is lost, as its workers are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from supervisor.core.allowance import Allowance
from supervisor.protocol.messages import Stage

UNNAMED = "UNNAMED"
"""The stage of a program that has named none."""
CHANGES = Allowance(at_once=30.0, per_second=1 / 60)
"""How many changes are told. An attempt has five until it trains; in the long run they take half a
megabyte of journal a day at most."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What is not told yet. Times are seconds on the supervisor's clock."""

    mark: float | None = None
    """Up to when the time is in `seconds`; None: no workers run."""
    stage: Stage | None = None
    """The present one; None: the program has named none."""
    seconds: dict[str, float] = field(default_factory=dict)
    """In each stage, in the order in which they were first left."""
    untold: int = 0
    """Changes of stage."""
    allowance: Allowance = CHANGES

    def started(self, at: float, stage: Stage | None) -> StageTimes:
        """The workers of an attempt run."""
        return StageTimes(at, stage, allowance=self.allowance)

    def entered(self, stage: Stage | None, at: float) -> tuple[bool, StageTimes]:
        """The workers are in `stage`; whether that is a change that may be told."""
        if self.mark is None or stage is self.stage:
            return False, self
        is_told, allowance = self.allowance.take(at)
        untold = self.untold + (not is_told)
        after = replace(self.until(at), stage=stage, untold=untold, allowance=allowance)
        return is_told, after

    def until(self, at: float) -> StageTimes:
        """With the time until `at`; nothing of it where an event comes late."""
        if self.mark is None or at <= self.mark:
            return self
        name = str(self.stage or UNNAMED)
        seconds = self.seconds.get(name, 0.0) + at - self.mark
        return replace(self, mark=at, seconds={**self.seconds, name: seconds})

    def ended(self, at: float) -> StageTimes:
        """The attempt is over: it is in no stage any more."""
        return replace(self.until(at), stage=None)

    def told(self) -> StageTimes:
        """All of it was told."""
        return replace(self, seconds={}, untold=0)

    def gone(self) -> StageTimes:
        """There are no workers any more."""
        return StageTimes(allowance=self.allowance)
