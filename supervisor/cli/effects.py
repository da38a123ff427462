"""Says what `supervise run` does about the failures of a rule: verdict, charge, next attempt.

Pure. The pages of the rules and the cookbook use the same tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from supervisor.config.judgement import Remedy
from supervisor.core.remediation import CAPACITY_WAITS, STORAGE_WAITS
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.outcome import Charge, Verdict
from supervisor.diagnosis.rules import FULL_DISK_RULES, Rule, rules_for_jobs_in_a_store
from supervisor.diagnosis.rules.hardware import SILENT_CORRUPTION
from supervisor.diagnosis.rules.rule import Compared

ENDS_AT_ONCE = "no, ends at once"
"""What stands for `Compared` where a FATAL is certain."""


class Treatment(NamedTuple):
    """What a remedy does."""

    next: str
    """How the next attempt differs."""
    until: str
    """When that ends the job, and with which exit code."""


REMEDIES: Mapping[Remedy, Treatment] = {
    Remedy.LESS_AT_ONCE: Treatment(
        "starts as it was; the second time with half the computations in flight and twice the "
        "accumulation, if the program offers them",
        "the 3rd time without a new checkpoint, or the 2nd if nothing is offered: 70",
    ),
    Remedy.ROLL_BACK: Treatment(
        "goes back to the newest checkpoint; if the same step fails twice, its batch is skipped",
        "no batch may be skipped: 70",
    ),
    Remedy.WAIT: Treatment(
        "waits 10 s, also the first time, then 20 s, ... 300 s; run.log says who holds the "
        "accelerator",
        "the budget is spent: 76 (69 with `init.provision`, if another machine may help)",
    ),
    Remedy.WAIT_LONG: Treatment("waits 80 s, 160 s, then 300 s each", "the budget is spent: 76"),
    Remedy.WAIT_FOR_CAPACITY: Treatment(
        "waits 40 s, 80 s, ... 300 s; charges nothing", f"{CAPACITY_WAITS} waits in a row: 69"
    ),
    Remedy.WAIT_FOR_STORAGE: Treatment(
        "starts at once, then waits 10 s, 20 s, ... 300 s; charges nothing",
        f"{STORAGE_WAITS} times in a row without a new checkpoint: 74",
    ),
}
COMPARED: Mapping[str, str] = {
    ENDS_AT_ONCE: "The first failure ends the job.",
    Compared.AS_A_GUESS: "The second failure that is the same ends the job.",
    Compared.ALWAYS: "`repeated_failure_limit` failures that are the same end the job: 2 before the first checkpoint, "
    "3 after it.",
    Compared.UNLESS_NAMED: "As *yes*, unless the error names the task, rank or address that was lost.",
    Compared.NEVER: "Only the budget, or the limit of the remedy, ends the job.",
}
_REPEATED: Mapping[Compared, str] = {
    Compared.ALWAYS: "The same failure without a new checkpoint between ends the job with exit code 70, whatever is "
    "left: at the 2nd before the first checkpoint, at the 3rd after it (`repeated_failure_limit`).",
    Compared.UNLESS_NAMED: "The same failure without a new checkpoint between ends the job with exit code 70, unless the "
    "error names the task, rank or address that was lost: at the 2nd before the first checkpoint, at the 3rd after it "
    "(`repeated_failure_limit`).",
    Compared.NEVER: "The same failure again does not end the job by itself: it may come again and still pass.",
}
_VERDICTS: Mapping[str, str] = {
    "certain": "Verdict: FATAL, certain. It ends the job at once, with exit code 70. Nothing is charged, and nothing is "
    "tried again. If something makes that doubtful (another error or rank, an answer from outside), it is a guess, and gets one more "
    "attempt: run.log says why.",
    "guess": "Verdict: FATAL, a guess. One more attempt is made. If the same failure comes again, it ends the job with exit "
    "code 70.",
    "RESTART": "Verdict: RESTART. The next attempt goes on from the newest committed checkpoint.",
    "checked": "Verdict: RESTART. The next attempt goes on from the newest checkpoint after which a check passed: newer ones "
    "are moved aside.",
    "POLICY": "Verdict: POLICY, a cause with a treatment of its own. The next attempt goes on from the newest committed "
    "checkpoint.",
}
_CHARGES: Mapping[Charge, str] = {
    Charge.RESTARTS: "Charged: one of `max_num_restarts`. A new checkpoint sets the count back to zero. If none is left, the "
    "job ends with exit code 76.",
    Charge.PREEMPTIONS: "Charged: one of `max_num_preemptions` (default: 20). A new checkpoint sets the count back to zero. If none is "
    "left, the job ends with exit code 76.",
    Charge.NOTHING: "Charged: nothing.",
}
_PAUSES = "Tried again: at once the first time; after more failures without a new checkpoint, after 10 s, 20 s, ... 300 s (`backoff`)."
_HARDWARE = (
    "Devices: if the config names them, they are probed before the next attempt. If one is bad, nothing is charged: it goes "
    "to quarantine for an hour, and the job goes on with the others, on a smaller rung if it must."
)
_RUNG = "Rung: on a smaller rung than the first one it ends the job no more, but disables that rung; the job goes on with another."
_HOST = (
    "Hosts: on several hosts it counts against the host of its rank. Three within an hour put that host in quarantine, if the "
    "others make up a rung."
)
_STORE = (
    "Bucket: if model_dir is in a bucket, and the client of the store raised the error, nothing is charged, and the job "
    f"waits for the store: {STORAGE_WAITS} times in a row without a new checkpoint end it, with exit code 74."
)
_DISK = "Disk: before the next attempt, the supervisor deletes outputs of old attempts, oldest first, if space is short."


@dataclass(frozen=True, slots=True)
class Kind:
    """What decides about the failures of a rule."""

    verdict: Verdict
    certain: bool
    charge: Charge
    remedy: Remedy | None
    compared: Compared
    hardware: bool = False
    per_rung: bool = False
    blames_host: bool = False
    waits_for_store: bool = False
    makes_room: bool = False
    is_corruption: bool = False
    """Whether it goes back to a checkpoint after which a check passed."""


def kind_of_rule(rule: Rule) -> Kind:
    """Returns the kind of a rule's failures."""
    (in_a_store,) = rules_for_jobs_in_a_store([rule])
    return Kind(
        rule.verdict,
        rule.verdict is Verdict.FATAL and rule.certain,
        rule.charge,
        rule.remedy,
        rule.compared,
        hardware=rule.hardware,
        per_rung=rule.per_rung,
        blames_host=rule.verdict is not Verdict.FATAL
        and rule.charge is Charge.RESTARTS
        and not rule.victim,
        makes_room=rule.name in FULL_DISK_RULES,
        is_corruption=rule.name == SILENT_CORRUPTION,
        waits_for_store=in_a_store.store_trouble_is_free and not rule.from_config,
    )


def kind_of_failure(failure: Failure) -> Kind:
    """Returns the kind of a failure that no rule of the table has decided about."""
    is_compared = failure.compared and failure.signature is not None and failure.remedy is None
    return Kind(
        failure.verdict,
        failure.is_certain,
        failure.charge,
        failure.remedy,
        Compared.ALWAYS if is_compared else Compared.NEVER,
        hardware=failure.hardware,
        per_rung=failure.per_rung,
        blames_host=failure.blames_host,
    )


def effects(kind: Kind) -> Iterator[str]:
    """Yields what `supervise run` does about such a failure, a paragraph each."""
    if kind.verdict is Verdict.FATAL:
        yield _VERDICTS["certain" if kind.certain else "guess"]
    else:
        yield _VERDICTS["checked" if kind.is_corruption else kind.verdict]
    if not kind.certain:
        yield _CHARGES[kind.charge]
        yield _tried_again(kind)
        if kind.verdict is not Verdict.FATAL:
            yield _REPEATED[kind.compared]
    yield from (
        text
        for applies, text in (
            (kind.hardware, _HARDWARE),
            (kind.per_rung, _RUNG),
            (kind.blames_host, _HOST),
            (kind.waits_for_store, _STORE),
            (kind.makes_room, _DISK),
        )
        if applies
    )


def _tried_again(kind: Kind) -> str:
    if kind.remedy is not None:
        treatment = REMEDIES[kind.remedy]
        return f"Tried again (remedy `{kind.remedy}`): the next attempt {treatment.next}. It ends the job: {treatment.until}."
    if kind.verdict is Verdict.FATAL:
        return "Tried again: once, after 10 s or more."
    return _PAUSES
