"""What `supervise explain` says of an attempt's end, and of what else could have been."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from supervisor.core.events import BadUnit, DevicesProbed, LossSpiked, WorkersGone
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.diagnosis.failure import Failure, WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.success import Success
from supervisor.narrative.alternatives import (
    Alternative,
    alternatives,
    can_be_decided_again,
    decided,
    ordinal,
)
from supervisor.narrative.attempt_account import Account, account_of, last_that_failed
from supervisor.protocol.loss_spikes import LossSpike
from tests.core.history import FATAL, FREE, OTHER, PREEMPTED, RETRY, SAME, History, policy, started

GUESS = replace(FATAL, certain=False, signature="FileNotFoundError-1")
HARDWARE = replace(RETRY, rule="device-fault", hardware=True)
DEVICES = RestartPolicy(
    phases=(PhasePolicy("only", 3, 2, Success(step=100), rungs=(4, 2), units=("0", "1", "2", "3")),)
)


def account(history: History, attempt: int | None = None) -> Account:
    number = attempt if attempt is not None else last_that_failed(history.turns)
    assert number is not None
    found = account_of(number, history.turns, None)
    assert found is not None
    return found


def others(history: History, attempt: int | None = None) -> dict[str, Alternative]:
    return {each.name: each for each in alternatives(account(history, attempt))}


def test_the_budget_of_a_failure_that_is_charged() -> None:
    history = started()
    history.fails()
    history.fails()
    it = account(history)
    counts = it.restarts
    assert (it.attempt, it.end) == (2, "FAILED")
    assert (counts.before, counts.forgiven, counts.charged, counts.after) == (1, 0, 1, 2)
    assert (counts.limit, counts.left, it.total.limit, it.total.left) == (3, 1, None, None)
    assert (decided(it).kind, decided(it).attempt) == ("attempt", 3)
    assert decided(it).seconds > 0


@pytest.mark.parametrize("at_its_end", [False, True])
def test_a_new_checkpoint_forgives_what_was_used(at_its_end: bool) -> None:
    history = started()
    history.fails()
    history.fails()
    history.runs()
    if not at_its_end:
        history.commits(10)
    history.ends(WorkerExit(0, signal="SIGKILL"))
    history.gone(RETRY, 10)
    counts = account(history).restarts
    assert (counts.before, counts.forgiven, counts.charged, counts.after) == (2, 2, 1, 1)


def test_a_failure_that_finds_nothing_left_is_not_charged() -> None:
    history = started(policy(restarts=1))
    history.fails()
    history.fails()
    it, other = account(history), others(history)
    assert (it.restarts.before, it.restarts.charged, it.restarts.left) == (1, 0, 0)
    assert (decided(it).kind, decided(it).exit_code) == ("end", 76)
    more = other["max_num_restarts"]
    assert (more.changes, more.left) == ({"max_num_restarts": 5}, 3)
    assert (more.outcome.kind, more.outcome.attempt) == ("attempt", 3)
    new = other["checkpoint"]
    assert (new.outcome.kind, new.outcome.seconds, new.left) == ("attempt", 0.0, 0)
    assert "count" not in other


def test_when_it_would_have_been_the_end() -> None:
    history = started(policy(restarts=2))
    history.fails()
    other = others(history)
    assert "the 3rd in a row" in other["count"].condition
    assert "(it was the 1st)" in other["count"].condition
    assert other["count"].outcome.exit_code == 76
    assert (other["max_num_restarts"].outcome, other["max_num_restarts"].left) == (
        decided(account(history)),
        4,
    )


def test_what_the_same_failure_again_would_do() -> None:
    history = started()
    history.fails(SAME)
    it, other = account(history), others(history)
    assert it.repetitions == 1
    assert other["repeated"].outcome.exit_code == 70
    assert "had come 2 times" in other["repeated"].condition
    history.fails(SAME)
    it, other = account(history), others(history)
    assert (it.repetitions, decided(it).exit_code) == (2, 70)
    assert other["repeated_failure_limit"].outcome.kind == "attempt"
    assert "repeated" not in other
    assert "count" not in other


def test_a_guess_is_tried_once_more_and_then_ends() -> None:
    history = started()
    history.fails(GUESS)
    assert others(history)["repeated"].outcome.exit_code == 70
    history.fails(GUESS)
    assert decided(account(history)).exit_code == 70
    assert others(history)["repeated"].outcome.kind == "attempt"
    assert others(history, 1)["repeated"].outcome.exit_code == 70, "of the attempt before, too"


def test_a_certain_failure_ends_whatever_is_left() -> None:
    history = started()
    history.fails(FATAL)
    it, other = account(history), list(alternatives(account(history)))
    assert (it.restarts.charged, decided(it).exit_code) == (0, 70)
    assert {each.name for each in other} == {"verdict"}, "no limit and no checkpoint helps"
    restart, guess = other
    assert restart.changes == {"verdict": "RESTART"}
    assert (restart.outcome.kind, restart.outcome.seconds, restart.left) == ("attempt", 0.0, 2)
    assert guess.changes == {"verdict": "FATAL", "certain": False}
    assert guess.outcome.seconds > 0


def test_a_preemption_has_a_budget_of_its_own() -> None:
    history = started(policy(preemptions=1))
    history.fails(PREEMPTED)
    it, other = account(history), others(history)
    assert (it.restarts.charged, it.preemptions.charged, it.preemptions.left) == (0, 1, 0)
    assert other["count"].changes == {"preemptions": 1}
    history.fails(PREEMPTED)
    assert decided(account(history)).exit_code == 76
    assert others(history)["max_num_preemptions"].outcome.kind == "attempt"


def test_what_charges_nothing_has_no_count() -> None:
    history = started()
    history.fails(FREE)
    it = account(history)
    assert (it.restarts.charged, it.preemptions.charged) == (0, 0)
    assert others(history).keys().isdisjoint({"count", "max_num_restarts"})


def test_a_limit_that_nothing_refills() -> None:
    phase = replace(policy().phases[0], max_total_restarts=1)
    history = started(policy(phase))
    history.fails(OTHER)
    history.fails()
    it = account(history)
    assert (it.total.before, it.total.charged, it.total.left) == (1, 0, 0)
    assert others(history)["max_total_restarts"].outcome.kind == "attempt"


def suspected(*, bad: tuple[BadUnit, ...] = ()) -> History:
    history = started(DEVICES)
    history.fails(HARDWARE)
    healthy = tuple(unit for unit in "0123" if unit not in {each.unit for each in bad})
    history.happens(DevicesProbed(history.now, history.state.looks, healthy, bad))
    return history


def test_a_failure_that_points_at_the_devices_is_settled_by_the_probe() -> None:
    history = suspected()
    it = account(history)
    assert it.is_settled
    assert it.settled is not it.ended
    assert (it.restarts.charged, decided(it).attempt) == (1, 2)
    found = others(history)["devices"]
    assert (found.outcome.kind, found.outcome.num_devices, found.left) == ("attempt", 2, 3)
    before = account_of(1, history.turns[:-1], None)
    assert before is not None
    assert not before.is_settled
    assert (decided(before).kind, decided(before).is_charged_later) == ("probe", True)


def test_a_probe_on_a_smaller_rung_does_not_put_off_the_charge() -> None:
    history = suspected(bad=(BadUnit("3", "wrong"),))
    history.fails()
    it = account(history)
    assert (it.attempt, it.restarts.charged) == (2, 1)
    assert (decided(it).kind, decided(it).is_charged_later) == ("probe", False)
    assert str(decided(it)) == "the devices are probed before attempt 3"


def test_a_bad_device_costs_its_rung_and_charges_nothing() -> None:
    it = account(suspected(bad=(BadUnit("3", "wrong"),)))
    assert (it.restarts.charged, it.next_rung) == (0, 2)
    assert [each.unit for each in it.settled.after.quarantine.entries] == ["3"]
    assert {each.name for each in alternatives(it)} <= {"checkpoint"}, "no limit was asked"


def test_a_record_of_other_rules_says_nothing_of_alternatives() -> None:
    history = started()
    history.fails()
    it = account(history)
    assert can_be_decided_again(it)
    gone = it.settled.event
    assert isinstance(gone, WorkersGone)
    other = replace(it.settled, event=replace(gone, failure=FATAL))
    it = replace(it, ended=other, settled=other)
    assert not can_be_decided_again(it)
    assert alternatives(it) == ()


def test_an_attempt_that_was_stopped_has_not_failed() -> None:
    history = started()
    history.runs()
    history.stops()
    history.ends(WorkerExit(0, signal="SIGTERM"))
    history.gone(RETRY)
    assert last_that_failed(history.turns) is None
    it = account(history, 1)
    assert (it.end, decided(it).exit_code, it.restarts.charged) == ("DRAINED", 75, 0)
    assert alternatives(it) == ()


def test_only_what_differs_is_an_alternative() -> None:
    def all_failures() -> Iterator[Failure]:
        yield from (RETRY, SAME, FATAL, GUESS, PREEMPTED, FREE)
        yield replace(RETRY, verdict=Verdict.POLICY)

    for failure in all_failures():
        history = started()
        history.fails(failure)
        now = decided(account(history)), account(history).restarts.left
        assert all((each.outcome, each.left) != now for each in alternatives(account(history)))


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_ordinals(number: int, text: str) -> None:
    assert ordinal(number) == text


def test_an_attempt_has_the_spikes_of_its_own_steps() -> None:
    history = started()
    for attempt, began, ended, spikes in ((1, None, 20, (3, 15)), (2, 4, 7, ()), (3, 4, 9, (16,))):
        history.runs()
        for each in spikes:
            found = LossSpike(each, 9.0, 2.0, 2.5)
            history.happens(LossSpiked(history.now, attempt, found))
        history.ends(WorkerExit(0, signal="SIGKILL"))
        history.happens(WorkersGone(history.now, attempt, RETRY, began, ended, 4))
        if history.state.backoff is not None:
            history.waits()
    steps = [[each.step for each in account(history, number).loss_spikes] for number in (1, 2, 3)]
    assert steps == [[3, 15], [], [16]], "the last one was not reported as a step"
