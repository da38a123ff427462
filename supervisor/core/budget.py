"""The restart budget of a phase, and the progress that refills it.

`max_num_restarts` bounds *consecutive* restarts without a new committed checkpoint: a step above
every earlier one of the phase sets the counts to zero; the failure that finds `max_num_restarts`
already spent ends the job. So there are exactly N restarts in a row, whether or not the first
failure made progress.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.core.outcome import Charge as Charge
from supervisor.core.policy import PhasePolicy


@dataclass(frozen=True, slots=True)
class Budget:
    """What was spent since the last progress, and the highest step ever committed in the phase.

    Retention may delete checkpoints, so what is there now can be lower than `highest`: progress is
    judged against `highest` alone, and it never falls.
    """

    restarts: int = 0
    preemptions: int = 0
    highest: int | None = None
    signature: str | None = None
    """That of the last failure that had one."""
    repeats: int = 0
    """How often in a row the failures that have a signature had this one."""

    @property
    def failures(self) -> int:
        """Consecutive charged failures without progress."""
        return self.restarts + self.preemptions

    def committed(self, step: int | None) -> Budget:
        """After a checkpoint of `step` was seen committed: refilled where that is progress."""
        if step is None or (self.highest is not None and step <= self.highest):
            return self
        return Budget(highest=step)

    def failed(self, signature: str | None) -> Budget:
        """After a failure of that signature; one without leaves the count as it is."""
        if signature is None:
            return self
        repeats = self.repeats + 1 if signature == self.signature else 1
        return replace(self, signature=signature, repeats=repeats)

    def repeats_too_often(self, policy: PhasePolicy) -> bool:
        """Whether the same failure came back as often as the policy bears without progress."""
        limit = policy.repeated_failure_limit
        if limit is None:
            limit = 2 if self.highest is None else 3
        return 0 < limit <= self.repeats

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
