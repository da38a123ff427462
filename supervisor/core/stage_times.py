"""The seconds that an attempt spends in each stage, for goodput and reports.

A fold over the workers' reports. The decision `TellStages` records them in the journal at each
change of stage, at each new checkpoint, and at the end of the attempt. Each record has the seconds
in every stage since the one before it, so together they cover the whole attempt.

A worker that changes its stage all the time must not fill the journal. So an `Allowance` limits the
records: a change without a record is counted in the next one, which has its seconds too.

Volatile: what is not recorded when a supervisor dies is lost, as its workers are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from supervisor.core.allowance import Allowance
from supervisor.protocol.messages import Stage

UNNAMED = "UNNAMED"
"""The name for the time in which a program has named no stage."""
CHANGES = Allowance(at_once=30.0, per_second=1 / 60)
"""How many changes are recorded. An attempt has five until it trains; in the long run they take at
most half a megabyte of journal a day."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The times that are not recorded yet. Times are seconds on the supervisor's clock."""

    mark: float | None = None
    """The time up to which `seconds` is complete; None: no workers run."""
    stage: Stage | None = None
    """The present stage; None: the program has named none."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by name of the stage, in the order in which the stages were first left."""
    untold: int = 0
    """How many changes of stage were not recorded."""
    begins_afresh: bool = False
    """Whether the program has told that there was nothing to restore."""
    allowance: Allowance = CHANGES

    def started(self, at: float, stage: Stage | None) -> StageTimes:
        """Returns the value once the workers of an attempt run."""
        return StageTimes(at, stage, allowance=self.allowance)

    def entered(self, stage: Stage | None, at: float) -> tuple[bool, StageTimes]:
        """Returns whether entering `stage` is a change to record, and the value after it."""
        if self.mark is None or stage is self.stage:
            return False, self
        is_told, allowance = self.allowance.take(at)
        untold = self.untold + (not is_told)
        after = replace(self.until(at), stage=stage, untold=untold, allowance=allowance)
        return is_told, after

    def found_nothing(self, at: float) -> StageTimes:
        """Returns the value after the program has told that there was nothing to restore: its
        restoring was the making of a first state, a part of its start."""
        after = replace(self.until(at), begins_afresh=True)
        seconds = {**after.seconds}
        restoring = seconds.pop(Stage.RESTORING, 0.0)
        if restoring:
            seconds[Stage.STARTING] = seconds.get(Stage.STARTING, 0.0) + restoring
        return replace(after, seconds=seconds)

    def until(self, at: float) -> StageTimes:
        """Returns the value with the time until `at` added (0 for a late event)."""
        if self.mark is None or at <= self.mark:
            return self
        is_start = self.begins_afresh and self.stage is Stage.RESTORING
        name = str(Stage.STARTING if is_start else self.stage or UNNAMED)
        seconds = self.seconds.get(name, 0.0) + at - self.mark
        return replace(self, mark=at, seconds={**self.seconds, name: seconds})

    def ended(self, at: float) -> StageTimes:
        """Returns the value at the end of the attempt, which is in no stage any more."""
        return replace(self.until(at), stage=None)

    def told(self) -> StageTimes:
        """Returns the value after all of it was recorded."""
        return replace(self, seconds={}, untold=0)

    def gone(self) -> StageTimes:
        """Returns the value after the workers are gone."""
        return StageTimes(allowance=self.allowance)
