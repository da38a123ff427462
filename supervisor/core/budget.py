"""The restart budget of a phase, and the progress that refills it.

`max_num_restarts` bounds *consecutive* restarts without a new committed checkpoint: a step above
every earlier one of the phase sets the counts to zero; the failure that finds `max_num_restarts`
already spent ends the job. So there are exactly N restarts in a row, whether or not the first
failure made progress.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from supervisor.core.policy import PhasePolicy


class Charge(StrEnum):
    """Which budget a failure spends."""

    RESTARTS = "restarts"
    PREEMPTIONS = "preemptions"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Budget:
    """What was spent since the last progress, and the highest step ever committed in the phase.

    Retention may delete checkpoints, so what is there now can be lower than `highest`: progress is
    judged against `highest` alone, and it never falls.
    """

    restarts: int = 0
    preemptions: int = 0
    highest: int | None = None

    @property
    def failures(self) -> int:
        """Consecutive charged failures without progress."""
        return self.restarts + self.preemptions

    def committed(self, step: int | None) -> Budget:
        """After a checkpoint of `step` was seen committed: refilled where that is progress."""
        if step is None or (self.highest is not None and step <= self.highest):
            return self
        return Budget(highest=step)

    def fresh(self) -> Budget:
        """Zero counts; the highest step stays."""
        return Budget(highest=self.highest)

    def charge(self, kind: Charge, policy: PhasePolicy) -> Budget | None:
        """After a failure that spends `kind`; None: that budget was already spent."""
        if kind is Charge.RESTARTS:
            if self.restarts >= policy.max_num_restarts:
                return None
            return replace(self, restarts=self.restarts + 1)
        if kind is Charge.PREEMPTIONS:
            if self.preemptions >= policy.max_num_preemptions:
                return None
            return replace(self, preemptions=self.preemptions + 1)
        return self
