"""Remediation: what was tried in a phase about failures that have a remedy, and what is left to do.

Pure like the budget beside it. What was tried is a promise to every later attempt of the phase: a
batch that was passed over stays passed over, also after a roll-back to before it, so that the state
is always one that a run without any failure could have reached with the same list.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from supervisor.config.judgement import Remedy
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.failure import Failure
from supervisor.protocol.adjustments import ACCUMULATION, INFLIGHT, SKIP_STEPS, Adjustments

CAPACITY_WAITS = 14
"""About an hour of waiting, with the default backoff."""
STORAGE_WAITS = 8
"""About a quarter of an hour."""

_AHEAD = {Remedy.WAIT: 1, Remedy.WAIT_LONG: 4}
"""Where in the backoff a wait begins that is not to be zero the first time: 10 s, and 80 s."""


@dataclass(frozen=True, slots=True)
class BadStep:
    """The step that gave NaN; where nobody told it, the highest that was committed by then."""

    step: int | None
    highest: int | None = None


@dataclass(frozen=True, slots=True)
class Remediation:
    """What was tried so far. `highest` is the highest committed step when it was: what is above
    that is progress, and all may be tried again."""

    adjustments: Adjustments = field(default_factory=Adjustments)
    memory_tries: int = 0
    """How often memory ran out at `highest`."""
    highest: int | None = None
    bad: BadStep | None = None
    """What was rolled back from last."""
    capacity_waits: int = 0
    """In a row."""
    storage_waits: int = 0
    """In a row, at `storage_at`, the highest committed step: above that it has worked meanwhile."""
    storage_at: int | None = None

    def fresh(self) -> Remediation:
        """For a job that is run again after its end: a person has changed something. What the
        checkpoints hold does not change by that."""
        return Remediation(Adjustments(skip_steps=self.adjustments.skip_steps))

    def run_again(self) -> Remediation:
        """For a job that goes on: whoever waited for something begins to wait anew."""
        return replace(self, capacity_waits=0, storage_waits=0)


@dataclass(frozen=True, slots=True)
class Course:
    """What to do about a failure."""

    remediation: Remediation
    told: str = ""
    """What a person is told of it."""
    end: ExitCode | None = None
    """Nothing is left to try: the job ends, because of `told`."""
    backoff: int | None = None
    """The wait is that of so many failures in a row; None: of as many as were charged."""
    ahead: int = 0
    """It is that of so many more."""


def answer(
    remediation: Remediation, failure: Failure, highest: int | None, adjustable: Collection[str]
) -> Course:
    """What to do about `failure` by its remedy.

    `highest` is the highest step ever committed, `adjustable` what the worker said it could adjust.
    """
    if failure.remedy is Remedy.WAIT_FOR_CAPACITY:
        return _wait_for_capacity(replace(remediation, storage_waits=0))
    remediation = replace(remediation, capacity_waits=0)
    if failure.remedy is Remedy.WAIT_FOR_STORAGE:
        return _wait_for_storage(remediation, highest)
    remediation = replace(remediation, storage_waits=0)
    match failure.remedy:
        case Remedy.LESS_AT_ONCE:
            return _less_at_once(remediation, highest, adjustable)
        case Remedy.ROLL_BACK:
            return _roll_back(remediation, failure.step, highest, adjustable)
        case Remedy.WAIT | Remedy.WAIT_LONG as wait:
            return Course(remediation, ahead=_AHEAD[wait])
        case _ if failure.is_guess:
            return Course(remediation, ahead=_AHEAD[Remedy.WAIT])
        case _:
            return Course(remediation)


def _wait_for_capacity(remediation: Remediation) -> Course:
    waits = remediation.capacity_waits + 1
    if waits > CAPACITY_WAITS:
        told = f"there was no capacity {waits} times in a row; run the same command again later"
        return Course(remediation, told, ExitCode.NO_CAPACITY)
    return Course(replace(remediation, capacity_waits=waits), backoff=waits, ahead=3)


def _wait_for_storage(remediation: Remediation, highest: int | None) -> Course:
    waits = remediation.storage_waits + 1 if remediation.storage_at == highest else 1
    if waits > STORAGE_WAITS:
        told = (
            f"the object store failed {waits} times in a row without a new checkpoint between; "
            "run the same command again once it works"
        )
        return Course(remediation, told, ExitCode.CANNOT_WRITE)
    remediation = replace(remediation, storage_waits=waits, storage_at=highest)
    return Course(remediation, "the object store's fault: nothing is charged", backoff=waits)


def _less_at_once(
    remediation: Remediation, highest: int | None, adjustable: Collection[str]
) -> Course:
    tries = remediation.memory_tries + 1 if remediation.highest == highest else 1
    remediation = replace(remediation, memory_tries=tries, highest=highest)
    if tries == 1:
        return Course(remediation, "once again as it was: fragmentation may not repeat")
    adjusted, told = remediation.adjustments, []
    if INFLIGHT in adjustable:
        adjusted = replace(adjusted, inflight=2 * adjusted.inflight)
        told.append("half the computations in flight")
    if ACCUMULATION in adjustable:
        adjusted = replace(adjusted, accumulation=2 * adjusted.accumulation)
        told.append("twice the gradient accumulation")
    if tries == 2 and told:
        return Course(replace(remediation, adjustments=adjusted), f"now with {' and '.join(told)}")
    count = f"memory ran out {tries} times without a new checkpoint between"
    left = "also with less at a time" if tries > 2 else "and the program offers no less at a time"
    return Course(remediation, f"{count}, {left}", ExitCode.FAILED)


def _roll_back(
    remediation: Remediation,
    completed: int | None,
    highest: int | None,
    adjustable: Collection[str],
) -> Course:
    """`completed` is the last step that was well."""
    step = completed + 1 if completed is not None else None
    bad = BadStep(step) if step is not None else BadStep(None, highest)
    if remediation.bad != bad:
        told = "back to the newest checkpoint; it may not repeat"
        return Course(replace(remediation, bad=bad), told)
    if step is None:
        told = "NaN or Inf came twice without a new checkpoint between: it would come again"
        return Course(remediation, told, ExitCode.FAILED)
    if SKIP_STEPS not in adjustable:
        told = f"step {step} gave NaN or Inf twice, and no (more) batches may be skipped"
        return Course(remediation, told, ExitCode.FAILED)
    skipped = tuple(sorted({*remediation.adjustments.skip_steps, step}))
    adjusted = replace(remediation.adjustments, skip_steps=skipped)
    remediation = replace(remediation, adjustments=adjusted)
    return Course(
        remediation, f"step {step} gave NaN or Inf twice: its batch is skipped from now on"
    )
