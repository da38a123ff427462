"""Says why an attempt ended as it did: as lines for people, and as data for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from supervisor.cli.config_change import changed_key_lines
from supervisor.cli.explained import change_lines, comparison, error_lines, explanation_body
from supervisor.cli.kept_evidence import Kept
from supervisor.cli.recipes import OWN_CODES
from supervisor.core.events import LaunchFailed, WorkersGone
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.outcome import Charge
from supervisor.diagnosis.rules import NOT_FINITE
from supervisor.files.attempts import attempt_folder
from supervisor.history.past import ConfigChange
from supervisor.narrative.alternatives import (
    Alternative,
    alternatives,
    can_be_decided_again,
    decided,
)
from supervisor.narrative.attempt_account import Account, Count
from supervisor.narrative.ends import AttemptEnd
from supervisor.narrative.event_line import count
from supervisor.narrative.failure_text import (
    certainty,
    place_of_failure,
    rank_in_words,
    record,
    torn_in_words,
)
from supervisor.narrative.findings import advice_at_end, spike_in_words


@dataclass(frozen=True, slots=True)
class Explained:
    """The end of an attempt, with what is kept of its evidence."""

    job: str
    place: str
    account: Account
    kept: Kept | None
    """None: it did not fail, so no rule decided."""
    missing: str
    """Which older records of the journal could not be read, and why; empty: none is missing."""
    notes: tuple[str, ...] = ()
    """What else people are told of the job: losses of other attempts that stand out, and what does
    not count as a checkpoint."""
    config_change: ConfigChange | None = None
    """What was changed in the config before it; None: nothing, or it is not known any more."""


# --- for people ----------------------------------------------------------------------------------


def account_lines(it: Explained) -> Iterator[str]:
    """Yields the explanation for people."""
    account, failure = it.account, it.account.failure
    yield f"job {it.job} in {it.place}"
    yield _head(account)
    if it.missing:
        yield f"older records of the journal cannot be read, so not all is known: {it.missing}"
    yield ""
    yield "EVIDENCE"
    yield from _indented(_evidence(it))
    if failure is not None and account.end is AttemptEnd.FAILED:
        yield ""
        yield "VERDICT"
        yield from _indented(_verdict(failure))
        yield ""
        yield "RULES THAT MATCHED"
        yield from _indented(_rules(it, failure))
    yield ""
    yield "BUDGET"
    yield from _indented(_budget(account))
    yield ""
    yield "DECIDED"
    yield from _indented(_decided(account))
    if account.end is AttemptEnd.FAILED:
        yield ""
        yield "WHAT ELSE COULD HAVE BEEN"
        yield from _indented(_alternatives(account))
    if failure is not None and account.end is AttemptEnd.FAILED:
        yield ""
        yield f"what to do: {advice_at_end(failure, account.settled.after, account.policy)}"
    if it.notes:
        yield ""
        yield from it.notes


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" if line else "" for line in lines)


def _head(account: Account) -> str:
    when = account.ended.wall.astimezone()
    text = f"attempt {account.attempt} (phase {account.limits.name!r}): {account.end}"
    text += f", ended {when:%Y-%m-%d %H:%M:%S%z}"
    if (seconds := _seconds(account)) is not None:
        text += f" after {seconds:.1f} s"
    return text


def _seconds(account: Account) -> float | None:
    if account.started is None:
        return None
    return max(0.0, (account.ended.wall - account.started.wall).total_seconds())


def _evidence(it: Explained) -> Iterator[str]:
    account, event, failure = it.account, it.account.ended.event, it.account.failure
    for number, ended in enumerate(account.exits):
        was_first = number < account.ended_before_kill
        late = "" if was_first else ", after the supervisor had decided to kill what was left"
        yield f"rank {ended.rank}: {ended}{late}"
    if isinstance(event, LaunchFailed):
        yield "no rank was started"
    elif not account.exits:
        yield "the exits of the ranks are not in the journal"
    if failure is not None:
        rank = rank_in_words(failure, account.ended.before.ladder.hosts(account.limits))
        yield f"root cause ({rank}): {failure.root_cause}{place_of_failure(failure)}"
    yield f"last stage: {account.stage or 'none was reported'}"
    if isinstance(event, WorkersGone):
        how = " (recognised in its output: it proves nothing)" if event.step_recognised else ""
        step = "none was reported" if event.step is None else event.step
        yield f"last completed step: {step}{how}"
        newest = "none" if event.committed is None else f"step {event.committed}"
        yield f"newest checkpoint at its end: {newest}"
        if event.torn is not None:
            yield torn_in_words(event.torn)
    yield from map(spike_in_words, account.loss_spikes)
    yield from changed_key_lines(it.config_change)
    directory = account.ended.before.directory
    yield f"its files: {it.place}/{directory}/{attempt_folder(account.attempt)}"


def _verdict(failure: Failure) -> Iterator[str]:
    yield f"{failure.verdict}{certainty(failure)} (rule {failure.rule!r}): {failure.cause}"
    yield f"why: {failure.reason}"
    if failure.grounds:
        yield failure.grounds
    if failure.signature is not None:
        yield f"signature {failure.signature}, {comparison(failure)}"
    yield f"all about this code: supervise rules {failure.rule}"


def _rules(it: Explained, failure: Failure) -> Iterator[str]:
    kept = it.kept
    assert kept is not None
    if isinstance(it.account.ended.event, LaunchFailed):
        yield "no rank was started, so there is no output: this is by the text in the journal"
    elif kept.from_journal:
        yield "the output of the attempt is not there any more: this is by the text in the journal"
    for each in kept.missing if not kept.from_journal else ():
        yield f"not there, or not readable: {each}"
    yield from kept.warnings
    if kept.explanation is None:
        yield "what is left of it shows no failure, so no rule can be tried again"
        return
    agrees = kept.agrees(failure)
    if not agrees:
        yield _why_other(failure, kept.explanation.failure.rule)
    yield from error_lines(kept.explanation, kept.logs, kept.own)
    if agrees:
        yield ""
        yield from change_lines(kept.explanation, kept.own, _TRIES)


_BY_ITSELF = frozenset({*OWN_CODES, NOT_FINITE})
_TRIES = "`supervise classify --config trainer.yaml LOG` tries it"


def _why_other(failure: Failure, now: str) -> str:
    if failure.rule in _BY_ITSELF:
        return (
            f"the supervisor gave the verdict ({failure.rule}) by what it saw itself, so no rule "
            f"decided. What the rules make of how it ended, alone ({now}):"
        )
    return (
        f"what is left of the evidence gives rule {now!r} now. The verdict in the journal counts "
        f"({failure.rule!r}): there was more evidence then, or it is of another version"
    )


def _budget(account: Account) -> Iterator[str]:
    failure = account.failure
    yield f"restarts: {_count_words(account.restarts)}"
    if decided(account).exit_code == ExitCode.BUDGET_SPENT:
        yield "nothing was left to charge for this one"
    charges_preemption = failure is not None and failure.charge is Charge.PREEMPTIONS
    if account.preemptions.before or account.preemptions.after or charges_preemption:
        yield f"preemptions: {_count_words(account.preemptions)}"
    limit = account.total.limit
    bound = f", of {limit} (max_total_restarts)" if limit is not None else "; there is no limit"
    yield f"charged restarts of this phase in all: {account.total.after}{bound}"
    if failure is not None and account.repetitions:
        ends = account.charged_from.repetition_limit(account.limits)
        limit_told = f"{ends} of them end the job" if ends else "no number of them ends the job"
        told = count(account.repetitions, "time")
        yield f"the same failure: {told} since the last new checkpoint; {limit_told}"


def _count_words(number: Count) -> str:
    by = " by a new checkpoint" if number.forgiven else ""
    return (
        f"{number.before} used before it, {number.forgiven} forgiven{by}, "
        f"{number.charged} charged for it: "
        f"{number.after} of {number.limit} used, {number.left} left"
    )


def _decided(account: Account) -> Iterator[str]:
    outcome = decided(account)
    yield f"{outcome}"
    if outcome.kind != "end" and outcome.reason:
        yield f"why: {outcome.reason}"
    if account.settled is not account.ended:
        yield "this was decided after a probe of the devices"
    before, after = account.ended.before, account.settled.after
    fresh = [each for each in after.quarantine.entries if each not in before.quarantine.entries]
    yield from (f"in quarantine from now on: {each.unit}: {each.reason}" for each in fresh)
    struck = [each for each in after.ladder.struck if each not in before.ladder.struck]
    yield from (f"disabled rung: {each.num_devices} devices: {each.reason}" for each in struck)
    now = before.ladder.num_devices(account.limits)
    if account.next_rung not in (now, None):
        yield f"the next attempt runs on {account.next_rung} devices; this one had {now}"
    if (changed := _adjusted(account)) is not None:
        yield f"the next attempt differs from the config: {changed}"


def _adjusted(account: Account) -> str | None:
    """Returns the settings that the next attempt has and this one had not; None: there are none."""
    before = account.ended.before.remediation.adjustments
    after = account.settled.after.remediation.adjustments
    if before == after:
        return None
    named = asdict(after)
    return ", ".join(
        f"{name}: {named[name]}" for name, old in asdict(before).items() if named[name] != old
    )


def _alternatives(account: Account) -> Iterator[str]:
    if not account.is_settled:
        yield "it is not decided yet: the devices are probed"
        return
    if not can_be_decided_again(account):
        yield _other_version(account)
        return
    others = alternatives(account)
    for each in others:
        yield f"* if {each.condition}: {_outcome_words(account, each)}"
    if not others:
        yield "nothing that supervise knows of would have changed it"


def _other_version(account: Account) -> str:
    by = f" ({account.version})" if account.version else ""
    return f"this version decides otherwise about that record than the one that wrote it{by}"


def _outcome_words(account: Account, other: Alternative) -> str:
    now = decided(account)
    left = f"{count(other.left, 'restart')} left"
    if other.outcome == now and now.kind != "end":
        return f"the same, with {left}"
    if other.outcome.kind == "end":
        return f"{other.outcome}"
    return f"{other.outcome}, with {left}"


# --- for programs --------------------------------------------------------------------------------


def account_body(it: Explained) -> dict[str, Any]:
    """Returns the explanation as JSON: see `docs/reference/cli.md`."""
    account, failure = it.account, it.account.failure
    event = account.ended.event
    ended = event if isinstance(event, WorkersGone) else None
    return {
        "v": 1,
        "job": it.job,
        "model_dir": it.place,
        "attempt": account.attempt,
        "phase": account.limits.name,
        "status": str(account.end),
        "ended": account.ended.wall.isoformat(),
        "seconds": _seconds(account),
        "version": account.version,
        "records_missing": it.missing or None,
        "evidence": {
            "exits": [
                {
                    **asdict(each),
                    "text": str(each),
                    "before_kill": number < account.ended_before_kill,
                }
                for number, each in enumerate(account.exits)
            ],
            "stage": account.stage,
            "step": ended.step if ended is not None else None,
            "step_recognised": ended.step_recognised if ended is not None else False,
            "committed": ended.committed if ended is not None else None,
            "loss_spikes": [asdict(each) for each in account.loss_spikes],
            "config_change": asdict(it.config_change) if it.config_change is not None else None,
            "directory": f"{account.ended.before.directory}/{attempt_folder(account.attempt)}",
        },
        "failure": record(failure) if failure is not None else None,
        "rules": _rules_body(it),
        "budget": _budget_body(account),
        "decided": _decided_body(account),
        "alternatives": [_alternative_body(each) for each in alternatives(account)],
        "alternatives_known": account.is_settled and can_be_decided_again(account),
    }


def _rules_body(it: Explained) -> dict[str, Any] | None:
    kept, failure = it.kept, it.account.failure
    if kept is None or failure is None:
        return None
    found, agrees = kept.explanation, kept.agrees(failure)
    explanation = explanation_body(found, kept.own) if found is not None else None
    if explanation is not None and not agrees:
        explanation["changes"] = []  # they would change what does not count
    return {
        "from": "journal" if kept.from_journal else "output",
        "logs": kept.logs,
        "missing": kept.missing,
        "warnings": kept.warnings,
        "rule": found.failure.rule if found is not None else None,
        "agrees": agrees,
        "explanation": explanation,
    }


def _budget_body(account: Account) -> dict[str, Any]:
    counts = {
        "restarts": account.restarts,
        "preemptions": account.preemptions,
        "total": account.total,
    }
    return {
        **{name: {**asdict(each), "left": each.left} for name, each in counts.items()},
        "repetitions": account.repetitions,
        "repetitions_limit": account.charged_from.repetition_limit(account.limits) or None,
    }


def _decided_body(account: Account) -> dict[str, Any]:
    outcome = decided(account)
    return {
        **asdict(outcome),
        "text": str(outcome),
        "after_probe": account.settled is not account.ended,
        "next_num_devices": account.next_rung,
    }


def _alternative_body(each: Alternative) -> dict[str, Any]:
    return {
        "name": each.name,
        "if": each.condition,
        "changes": each.changes,
        "outcome": {**asdict(each.outcome), "text": str(each.outcome)},
        "restarts_left": each.left,
    }
