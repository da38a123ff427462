"""Remediation: what was tried about failures that have a remedy, and what to try next.

What was tried holds for every later attempt of the phase. A skipped batch stays skipped, also after
a roll-back to before it, so the training state is always one that a run without failures and with
the same list of skipped batches could have reached.
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
"""How many steps of the backoff the first wait skips: it is 10 s and 80 s by default, not 0 s."""


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
    """The step that the last roll-back was for."""
    capacity_waits: int = 0
    """Waits for capacity in a row."""
    storage_waits: int = 0
    """In a row, while `storage_at` is the highest committed step: a higher one proves that the
    store worked in between."""
    storage_at: int | None = None

    def fresh(self) -> Remediation:
        """Returns the remediation of a job that is run again after it failed for good.

        A person has changed something, so all may be tried again; skipped batches stay skipped,
        because the checkpoints were made without them.
        """
        return Remediation(Adjustments(skip_steps=self.adjustments.skip_steps))

    def run_again(self) -> Remediation:
        """Returns the remediation of a job that is run again: the counts of waits start at zero."""
        return replace(self, capacity_waits=0, storage_waits=0)


@dataclass(frozen=True, slots=True)
class Course:
    """What to do about a failure."""

    remediation: Remediation
    told: str = ""
    """What people are told of it."""
    end: ExitCode | None = None
    """Set if nothing is left to try: the job ends with this code, and `told` says why."""
    backoff: int | None = None
    """Back off as after this many failures in a row; None: as after the charged ones."""
    ahead: int = 0
    """How many failures are added to that number."""


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
            f"the storage failed {waits} times in a row without a new checkpoint between; "
            "run the same command again once it works"
        )
        return Course(remediation, told, ExitCode.CANNOT_WRITE)
    remediation = replace(remediation, storage_waits=waits, storage_at=highest)
    return Course(remediation, "the storage's fault: nothing is charged", backoff=waits)


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
    """Returns what to do about NaN or Inf; `completed` is the last good step, None: not known."""
    step = completed + 1 if completed is not None else None
    bad = BadStep(step) if step is not None else BadStep(None, highest)
    if remediation.bad != bad:
        told = "back to the newest checkpoint; it may not repeat"
        return Course(replace(remediation, bad=bad), told)
    if step is None:
        told = "NaN or Inf came twice without a new checkpoint between: it would come again"
        return Course(remediation, told, ExitCode.FAILED)
    if SKIP_STEPS not in adjustable:
        left = "no more" if remediation.adjustments.skip_steps else "none"
        why = f"its batch may not be skipped: skip_bad_batches of the config allows {left}"
        told = f"step {step} gave NaN or Inf twice, and {why}"
        return Course(remediation, told, ExitCode.FAILED)
    if step in remediation.adjustments.skip_steps:
        told = f"step {step} gave NaN or Inf again, although its batch is skipped"
        return Course(remediation, told, ExitCode.FAILED)
    skipped = tuple(sorted({*remediation.adjustments.skip_steps, step}))
    adjusted = replace(remediation.adjustments, skip_steps=skipped)
    remediation = replace(remediation, adjustments=adjusted)
    return Course(
        remediation, f"step {step} gave NaN or Inf twice: its batch is skipped from now on"
    )
