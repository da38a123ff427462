"""What else could have been decided at the end of an attempt.

Each alternative asks the decision core itself, about the same end with one thing changed: a limit
of the config, a count, a checkpoint, the verdict. So it cannot differ from what would be decided.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from supervisor.core.decisions import Decision, FinishJob, ProbeDevices, StartWorkers, Wait
from supervisor.core.doing import Probing
from supervisor.core.events import BadUnit, DevicesProbed, Event, LaunchFailed, WorkersGone
from supervisor.core.guesses import Guesses
from supervisor.core.machine import step
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.outcome import Charge, Verdict
from supervisor.narrative.attempt_account import Account, suspicion_of
from supervisor.narrative.ends import AttemptEnd

_OTHER_LIMIT = 5
"""The `max_num_restarts` that is tried if the present one is lower; else twice the present one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was decided, or would have been."""

    kind: str
    """`attempt`: another attempt; `probe`: the devices are probed first; `wait`: it waits for
    devices; `end`: the job ends; `none`: nothing of that was decided."""
    attempt: int | None = None
    """The number of the next attempt."""
    seconds: float = 0.0
    """How long it waits before that."""
    num_devices: int | None = None
    exit_code: int | None = None
    reason: str = ""
    is_charged_later: bool = False
    """Whether the failure is charged only if a probe finds the devices well."""

    def __str__(self) -> str:
        match self.kind:
            case "end":
                return f"the job ends with exit code {self.exit_code}: {self.reason}"
            case "probe" if self.is_charged_later:
                return "the devices are probed: only if they are well is the failure charged"
            case "probe":
                return f"the devices are probed before attempt {self.attempt}"
            case "wait":
                return f"the job waits for devices: {self.reason}"
            case "attempt":
                soon = f"after {self.seconds:.1f} s" if self.seconds else "at once"
                on = f" on {self.num_devices} devices" if self.num_devices is not None else ""
                return f"attempt {self.attempt} starts {soon}{on}"
            case _:
                return "nothing follows from it"


@dataclass(frozen=True, slots=True)
class Alternative:
    """What would have been decided if one thing had been different."""

    name: str
    """What differs, in one word, for programs."""
    condition: str
    """The rest of a sentence that begins with "if"."""
    changes: dict[str, Any]
    """What differs, with its value."""
    outcome: Outcome
    left: int
    """How many restarts would be left."""


def outcome_of(state: JobState, decisions: tuple[Decision, ...]) -> Outcome:
    """Returns what these decisions lead to; `state` is the state after them."""
    for each in decisions:
        match each:
            case FinishJob(exit_code=code, reason=reason):
                return Outcome("end", exit_code=int(code), reason=reason)
            case StartWorkers(attempt=attempt, num_devices=number, reason=reason):
                return Outcome("attempt", attempt, num_devices=number, reason=reason)
            case Wait(reason=reason) if state.capacity_check is not None:
                return Outcome("wait", state.attempt + 1, reason=reason)
            case Wait(seconds=seconds, reason=reason):
                return Outcome("attempt", state.attempt + 1, seconds, reason=reason)
            case ProbeDevices(reason=reason):
                later = suspicion_of(state) is not None
                return Outcome("probe", state.attempt + 1, reason=reason, is_charged_later=later)
            case _:
                pass
    return Outcome("none")


def decided(account: Account) -> Outcome:
    """Returns what was decided about the end of the attempt."""
    return outcome_of(account.settled.after, account.settled.decisions)


def can_be_decided_again(account: Account) -> bool:
    """Whether today's core decides the same about the recorded end, though perhaps in other words.
    It may not if another version wrote the record; then alternatives mean nothing."""
    found = _Again(account).result()
    return found is not None and _without_words(found[0]) == _without_words(decided(account))


def _without_words(outcome: Outcome) -> Outcome:
    return replace(outcome, reason="")


def alternatives(account: Account) -> tuple[Alternative, ...]:
    """Returns what would have been decided otherwise; only what differs from what was decided."""
    failure, again = account.failure, _Again(account).result()
    if failure is None or again is None or account.end is not AttemptEnd.FAILED:
        return ()
    if not can_be_decided_again(account):
        return ()
    now, left = again
    tries = (
        *_by_count(account, failure),
        *_by_limit(account, failure),
        *_by_repetition(account, failure),
        *_by_checkpoint(account),
        *_by_verdict(account, failure),
        *_by_devices(account),
    )
    return tuple(each for each in tries if not _is_the_same(each, now, left))


def _is_the_same(other: Alternative, now: Outcome, left: int) -> bool:
    if other.outcome.kind == "end":  # then nobody asks what is left
        return other.outcome == now
    return (other.outcome, other.left) == (now, left)


@dataclass(frozen=True, slots=True)
class _Again:
    """The end of an attempt, to be decided again with something changed."""

    account: Account
    state: JobState | None = None
    policy: RestartPolicy | None = None
    failure: Failure | None = None
    event: Event | None = None

    def result(self) -> tuple[Outcome, int] | None:
        """Returns the outcome and how many restarts are left; None: it cannot be decided."""
        settled = self.account.settled
        state = self.state or settled.before
        policy, event = self.policy or self.account.policy, self.event or settled.event
        if self.failure is not None:
            if isinstance(event, WorkersGone | LaunchFailed):
                event = replace(event, failure=self.failure)
            elif isinstance(state.doing, Probing) and state.doing.suspicion is not None:
                suspicion = replace(state.doing.suspicion, failure=self.failure)
                state = replace(state, doing=replace(state.doing, suspicion=suspicion))
        try:
            after, decisions = step(state, event, policy)
        except Exception:  # a record of another version, which this core cannot take
            return None
        limit = policy.phases[state.phase].max_num_restarts
        return outcome_of(after, decisions), max(0, limit - after.budget.restarts)

    def told(self, name: str, condition: str, **changes: Any) -> Iterator[Alternative]:
        """Yields the alternative, if it can be decided."""
        found = self.result()
        if found is not None and found[0].kind != "none":
            yield Alternative(name, condition, changes, *found)


def _committed(account: Account) -> JobState:
    """Returns the state before the charge, with the checkpoint that the end has shown."""
    before = account.settled.before
    return replace(before, budget=account.charged_from)


def _with_limits(account: Account, **changes: Any) -> RestartPolicy:
    phase = account.ended.before.phase
    phases = list(account.policy.phases)
    phases[phase] = replace(phases[phase], **changes)
    return replace(account.policy, phases=tuple(phases))


def _was_charged(account: Account) -> bool:
    return bool(account.restarts.charged or account.preemptions.charged)


def _by_count(account: Account, failure: Failure) -> Iterator[Alternative]:
    """Yields when the same end would have spent the budget."""
    name = {Charge.RESTARTS: "restarts", Charge.PREEMPTIONS: "preemptions"}.get(failure.charge)
    if name is None or not _was_charged(account):
        return
    limit = getattr(account.limits, f"max_num_{name}")
    state = _committed(account)
    state = replace(state, budget=replace(state.budget, **{name: limit}))
    which = f"the {ordinal(limit + 1)} in a row that spends max_num_{name}, without progress"
    number = account.restarts.after if name == "restarts" else account.preemptions.after
    condition = f"this failure had been {which} (it was the {ordinal(number)})"
    yield from _Again(account, state).told("count", condition, **{name: limit})


def _by_limit(account: Account, failure: Failure) -> Iterator[Alternative]:
    """Yields what other limits of the config would have led to."""
    limits = account.limits
    if not _was_charged(account) and decided(account).kind != "end":
        return  # no limit was asked
    if failure.charge is Charge.RESTARTS:
        present = limits.max_num_restarts
        other = _OTHER_LIMIT if present < _OTHER_LIMIT else 2 * present
        policy = _with_limits(account, max_num_restarts=other)
        condition = f"the config had max_num_restarts: {other} (it has {present})"
        again = _Again(account, policy=policy)
        yield from again.told("max_num_restarts", condition, max_num_restarts=other)
    if failure.charge is Charge.PREEMPTIONS and decided(account).kind == "end":
        other = 2 * limits.max_num_preemptions or _OTHER_LIMIT
        policy = _with_limits(account, max_num_preemptions=other)
        condition = (
            f"the config had max_num_preemptions: {other} (it has {limits.max_num_preemptions})"
        )
        again = _Again(account, policy=policy)
        yield from again.told("max_num_preemptions", condition, max_num_preemptions=other)
    if limits.max_total_restarts is not None:
        policy = _with_limits(account, max_total_restarts=None)
        condition = f"the config had no max_total_restarts (it has {limits.max_total_restarts})"
        again = _Again(account, policy=policy)
        yield from again.told("max_total_restarts", condition, max_total_restarts=None)


def _by_repetition(account: Account, failure: Failure) -> Iterator[Alternative]:
    """Yields what it means whether the same failure came before."""
    signature, was = failure.signature, decided(account)
    if failure.is_certain:
        return
    if failure.is_guess:
        before = _committed(account)
        if was.kind == "end":
            state = replace(before, guesses=Guesses())
            condition = "the same failure had not come before (its FATAL is a guess)"
        else:
            state = replace(before, guesses=account.settled.after.guesses)
            condition = "the same failure had come once before (its FATAL is a guess)"
        yield from _Again(account, state).told("repeated", condition, signature=signature)
        return
    if signature is None or not failure.compared or failure.remedy is not None:
        return
    limit = account.charged_from.repetition_limit(account.limits)
    if was.kind == "end" and limit:
        policy = _with_limits(account, repeated_failure_limit=0)
        condition = "the config had repeated_failure_limit: 0"
        again = _Again(account, policy=policy)
        yield from again.told("repeated_failure_limit", condition, repeated_failure_limit=0)
    elif limit:
        budget = replace(account.charged_from, signatures=(signature,) * (limit - 1))
        state = replace(_committed(account), budget=budget)
        condition = (
            f"the same failure had come {limit} times without a new checkpoint "
            f"(so far: {max(1, account.repetitions)})"
        )
        yield from _Again(account, state).told("repeated", condition, times=limit)


def _by_checkpoint(account: Account) -> Iterator[Alternative]:
    """Yields what a new checkpoint would have led to."""
    state = _committed(account)
    highest = state.budget.highest
    new, target = 1 if highest is None else highest + 1, account.limits.success.step
    if target is not None and new >= target:
        return  # such a checkpoint would have been the end of the work
    state = replace(state, budget=replace(state.budget, first=None))
    state, event = state.committed(new, account.settled.event.at), account.settled.event
    if isinstance(event, WorkersGone):
        event = replace(event, committed=new)
    above = f"above step {highest}" if highest is not None else "of any step"
    condition = f"a new checkpoint {above} had been committed before it"
    yield from _Again(account, state, event=event).told("checkpoint", condition, committed=new)


def _by_verdict(account: Account, failure: Failure) -> Iterator[Alternative]:
    """Yields what another verdict of a rule of the config would have led to."""
    known = suspicion_of(account.settled.before) or _failure_in(account)
    if known is None or known.rule != failure.rule:
        return  # the supervisor gave the verdict itself, as of a hang
    plain = replace(
        known, grounds="", remedy=None, charge=Charge.RESTARTS, reason="the rule says so"
    )
    if failure.verdict is Verdict.FATAL:
        other = replace(plain, verdict=Verdict.RESTART, certain=False, compared=False)
        again = _Again(account, failure=other)
        condition = "a rule of your config had said RESTART"
        yield from again.told("verdict", condition, verdict="RESTART")
    if failure.is_certain:
        again = _Again(account, failure=replace(plain, certain=False))
        condition = "its FATAL had been a guess (certain: false)"
        yield from again.told("verdict", condition, verdict="FATAL", certain=False)
    elif not (failure.is_guess and decided(account).kind == "end"):
        other = replace(plain, verdict=Verdict.FATAL, certain=True)
        if isinstance(account.settled.event, DevicesProbed):
            return  # a certain FATAL ends the job before any probe
        condition = "a rule of your config had said FATAL for certain"
        again = _Again(account, failure=other)
        yield from again.told("verdict", condition, verdict="FATAL", certain=True)


def _failure_in(account: Account) -> Failure | None:
    event = account.settled.event
    return event.failure if isinstance(event, WorkersGone | LaunchFailed) else None


def _by_devices(account: Account) -> Iterator[Alternative]:
    """Yields what a probe that finds a bad device would have led to."""
    event = account.settled.event
    if not isinstance(event, DevicesProbed) or event.problem is not None or event.bad:
        return
    in_use = account.settled.before.ladder.units(account.limits)
    if not in_use:
        return
    bad = in_use[-1]
    healthy = tuple(unit for unit in event.healthy if unit != bad)
    other = replace(event, healthy=healthy, bad=(BadUnit(bad, "it computed wrongly"),))
    condition = f"the probe had found {bad} bad: quarantine for an hour, and no charge"
    yield from _Again(account, event=other).told("devices", condition, bad=bad)


def ordinal(number: int) -> str:
    """Returns a number as an ordinal: `1st`, `2nd`, `11th`."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 14 else last}"
