"""The restart budget of a phase, and the progress that refills it.

`max_num_restarts` bounds *consecutive* restarts without a new committed checkpoint: a step above
every earlier one of the phase sets the counts to zero; the failure that finds `max_num_restarts`
already spent ends the job. So there are exactly N restarts in a row, whether or not the first
failure made progress.

`max_total_restarts`, where it is set, bounds all charged restarts of the phase, and nothing refills
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.core.policy import PhasePolicy
from supervisor.diagnosis.outcome import Charge as Charge


@dataclass(frozen=True, slots=True)
class Budget:
    """What was spent since the last progress, and the highest step ever committed in the phase.

    Retention may delete checkpoints, so what is there now can be lower than `highest`: progress is
    judged against `highest` alone, and it never falls.
    """

    restarts: int = 0
    preemptions: int = 0
    highest: int | None = None
    signatures: tuple[str, ...] = ()
    """The signatures of the failures since the last progress; a failure may have none."""
    total: int = 0
    """Charged restarts of the phase, whatever progress there was between."""

    @property
    def failures(self) -> int:
        """Consecutive charged failures without progress."""
        return self.restarts + self.preemptions

    def committed(self, step: int | None) -> Budget:
        """Returns the budget after a commit of `step`: refilled if that is progress."""
        if step is None or (self.highest is not None and step <= self.highest):
            return self
        return Budget(highest=step, total=self.total)

    def failed(self, signature: str | None, policy: PhasePolicy) -> Budget:
        """Returns the budget after a failure of `signature`, kept only if the policy limits
        repetitions."""
        if signature is None or not self.repetition_limit(policy):
            return self
        return replace(self, signatures=(*self.signatures, signature))

    def repetition_limit(self, policy: PhasePolicy) -> int:
        """Returns how often the same failure may come without progress; 0: no limit."""
        if policy.repeated_failure_limit is not None:
            return policy.repeated_failure_limit
        return 2 if self.highest is None else 3

    def repetitions(self, signature: str | None) -> int:
        """Returns how often a failure of `signature` came since the last progress."""
        return self.signatures.count(signature)

    def on_another_machine(self, policy: PhasePolicy) -> Budget | None:
        """Returns the budget after the machine is replaced: only `total` stays.

        None: `max_total_restarts` is spent.
        """
        if self._all_spent(policy):
            return None
        return replace(self, restarts=0, preemptions=0, signatures=())

    def fresh(self) -> Budget:
        """Returns a budget with all counts zero and the same highest step."""
        return Budget(highest=self.highest)

    def charge(self, kind: Charge, policy: PhasePolicy) -> Budget | None:
        """Returns the budget after a failure that spends `kind`; None: nothing was left to
        spend."""
        if kind is Charge.NOTHING:
            return self
        if self._all_spent(policy):
            return None
        if kind is Charge.RESTARTS:
            if self.restarts >= policy.max_num_restarts:
                return None
            return replace(self, restarts=self.restarts + 1, total=self.total + 1)
        if self.preemptions >= policy.max_num_preemptions:
            return None
        return replace(self, preemptions=self.preemptions + 1, total=self.total + 1)

    def why_spent(self, kind: Charge, policy: PhasePolicy) -> str:
        """Returns a sentence on why `charge` found nothing left."""
        if self._all_spent(policy):
            limit = policy.max_total_restarts
            return f"all {limit} restarts of max_total_restarts are spent, which nothing refills"
        limit = getattr(policy, f"max_num_{kind}")
        return f"the budget of {limit} {kind} without a new checkpoint is spent"

    def _all_spent(self, policy: PhasePolicy) -> bool:
        return policy.max_total_restarts is not None and self.total >= policy.max_total_restarts
