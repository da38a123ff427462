"""What must be done about failures that have a remedy, computed apart from the core that decides
it.

Like the account, this is a second, independent implementation of the design. It works in another
way: it keeps the plain list of failures and searches it each time, where the core keeps counters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from supervisor.config.judgement import Remedy
from supervisor.core.exit_codes import ExitCode
from supervisor.protocol.adjustments import ACCUMULATION, INFLIGHT, SKIP_STEPS, Adjustments

_PATIENCE = {Remedy.WAIT_FOR_CAPACITY: 14, Remedy.WAIT_FOR_STORAGE: 8}
"""How many waits in a row a job may take, for each of these remedies."""
_IMPATIENT_END = {
    Remedy.WAIT_FOR_CAPACITY: ExitCode.NO_CAPACITY,
    Remedy.WAIT_FOR_STORAGE: ExitCode.CANNOT_WRITE,
}
_SOONER = {Remedy.WAIT: 1, Remedy.WAIT_LONG: 4, Remedy.WAIT_FOR_CAPACITY: 3}


@dataclass(frozen=True, slots=True)
class Failed:
    """A failure: its remedy, the last good step, and the highest step committed before it."""

    remedy: Remedy | None
    completed: int | None = None
    highest: int | None = None


@dataclass(frozen=True, slots=True)
class ExpectedRemediation:
    """The failures of a phase so far, in order, and what attempts are asked to adjust because of
    them."""

    failed: tuple[Failed, ...] = ()
    adjustments: Adjustments = field(default_factory=Adjustments)
    end: ExitCode | None = None
    """The exit code that must end the job, because nothing is left to try after the last
    failure."""

    def begun(self) -> ExpectedRemediation:
        """Return the remediation after the start of a supervisor: waits are counted anew."""
        return replace(self, failed=(*self.failed, Failed(None)), end=None)

    def after_the_end(self) -> ExpectedRemediation:
        """Return the remediation for a job that had ended for good and is run again."""
        return ExpectedRemediation(adjustments=Adjustments(skip_steps=self.adjustments.skip_steps))

    def after(
        self,
        remedy: Remedy | None,
        completed: int | None,
        highest: int | None,
        adjustable: tuple[str, ...],
    ) -> ExpectedRemediation:
        """Return the remediation after one more failure."""
        now = Failed(remedy, completed, highest)
        remediation = replace(self, failed=(*self.failed, now), end=None)
        if remedy is Remedy.LESS_AT_ONCE:
            return remediation._memory(highest, adjustable)
        if remedy is Remedy.ROLL_BACK:
            return remediation._rolled_back(self._same_before(now), completed, adjustable)
        if remedy in _PATIENCE and remediation._waits() > _PATIENCE[remedy]:
            return replace(remediation, end=_IMPATIENT_END[remedy])
        return remediation

    def failures_to_wait_for(self, charged: int) -> int:
        """Return the number of failures in a row that decides the length of the wait."""
        remedy = self.failed[-1].remedy if self.failed else None
        counted = self._waits() if remedy in _PATIENCE else charged
        return counted + (_SOONER.get(remedy, 0) if remedy is not None else 0)

    def _memory(self, highest: int | None, adjustable: tuple[str, ...]) -> ExpectedRemediation:
        same = [f for f in self.failed if f.remedy is Remedy.LESS_AT_ONCE and f.highest == highest]
        less, more = INFLIGHT in adjustable, ACCUMULATION in adjustable
        if len(same) == 1:
            return self
        if len(same) > 2 or not (less or more):
            return replace(self, end=ExitCode.FAILED)
        asked = self.adjustments
        inflight, accumulation = asked.inflight << less, asked.accumulation << more
        return replace(self, adjustments=Adjustments(inflight, accumulation, asked.skip_steps))

    def _same_before(self, now: Failed) -> bool:
        """True if the last NaN, if there was one, came at the same step."""
        last = next((f for f in reversed(self.failed) if f.remedy is Remedy.ROLL_BACK), None)
        if last is None or last.completed != now.completed:
            return False
        return now.completed is not None or last.highest == now.highest

    def _rolled_back(
        self, same: bool, completed: int | None, adjustable: tuple[str, ...]
    ) -> ExpectedRemediation:
        if not same:
            return self
        if completed is None or SKIP_STEPS not in adjustable:
            return replace(self, end=ExitCode.FAILED)
        asked, bad = self.adjustments, completed + 1
        if bad in asked.skip_steps:
            return replace(self, end=ExitCode.FAILED)
        skipped = tuple(sorted({bad, *asked.skip_steps}))
        return replace(self, adjustments=replace(asked, skip_steps=skipped))

    def _waits(self) -> int:
        """Return how many waits in a row had the same remedy; for storage, without progress between
        them."""
        last = self.failed[-1]
        count = 0
        for failure in reversed(self.failed):
            stored = failure.remedy is Remedy.WAIT_FOR_STORAGE
            if failure.remedy is not last.remedy or (stored and failure.highest != last.highest):
                break
            count += 1
        return count
