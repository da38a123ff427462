"""What the records of a job add up to: its failures, and when it committed last. A fold, like the
goodput, without I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.core.events import LaunchFailed, WorkersGone
from supervisor.diagnosis.failure import Failure
from supervisor.ports import Transition

_MAX_KINDS = 64
"""Kinds of failures that are told apart: a config may have rules of its own, and each kind is a
series in Prometheus."""


@dataclass(frozen=True, slots=True)
class FailureKind:
    """What equal failures have in common."""

    code: str
    verdict: str
    cause: str


OTHER = FailureKind("other", "other", "other")
"""All failures beyond the first kinds."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The sums over the records of a job."""

    failures: Mapping[FailureKind, int] = field(default_factory=dict)
    """How often the job failed in each way. An attempt that was asked to end, and left nothing but
    its exit, did not fail."""
    committed_at: float | None = None
    """The Unix time at which the highest committed step was seen; None: no step was committed."""

    def after(self, t: Transition) -> Tally:
        """Returns the sums after one more transition."""
        tally = self
        highest = t.after.budget.highest
        if highest is not None and highest != t.before.budget.highest:
            tally = replace(tally, committed_at=t.wall.timestamp())
        failure = t.event.failure if isinstance(t.event, WorkersGone | LaunchFailed) else None
        if failure is not None and not (t.before.drains and failure.root_cause == failure.exit):
            tally = tally._failed(failure)
        return tally

    def _failed(self, failure: Failure) -> Tally:
        kind = FailureKind(failure.rule, str(failure.verdict), failure.cause)
        if kind not in self.failures and len(self.failures) >= _MAX_KINDS:
            kind = OTHER
        return replace(self, failures={**self.failures, kind: self.failures.get(kind, 0) + 1})
