"""A FATAL that is a guess: one more attempt, and the end when the same failure comes again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.decisions import ProbeDevices, StartWorkers, TellLivelock, Wait
from supervisor.core.events import LaunchFailed, WorkersGone
from supervisor.core.exit_codes import ExitCode
from supervisor.core.guesses import MOST, Guess, Guesses
from supervisor.core.ladder import Placement
from supervisor.core.machine import step
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import JobState, Status
from supervisor.diagnosis.failure import Failure, WorkerExit
from supervisor.diagnosis.success import Success
from tests.core.history import FATAL, RETRY, SAME, TWO, History, policy, started
from tests.core.test_capacity_check import Devices, shrunk

GUESS = replace(FATAL, rule="missing-file", certain=False, signature="FileNotFoundError-1")
OTHER_GUESS = replace(GUESS, signature="FileNotFoundError-2")
PER_RUNG = replace(GUESS, rule="compile-call", cause="compilation failed", per_rung=True)


def at(step: int | None, failure: Failure = GUESS) -> Failure:
    return replace(failure, step=step)


def dies(history: History, failure: Failure, committed: int | None = None) -> None:
    """The attempt fails; what it leads to is not waited out."""
    history.runs()
    history.ends(WorkerExit(0, code=1))
    history.gone(failure, committed)


def code(history: History) -> ExitCode | None:
    return history.finish.exit_code if history.finish is not None else None


# --- which failure is the same ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("earlier", "now", "same"),
    [
        (Guess("E", 5, None), Guess("E", 5, None), True),
        (Guess("E", 5, 3), Guess("E", 9, 3), True),
        (Guess("E", None, None), Guess("E", None, None), True),
        (Guess("E", 5, 3), Guess("E", 5, 4), True),
        (Guess("E", 5, None), Guess("E", 6, 4), False),
        (Guess("E", None, None), Guess("E", None, 4), False),
        (Guess("E", 5, 3), Guess("F", 5, 3), False),
        (Guess("E", 5, 3, 8), Guess("E", 5, 3, 4), False),
    ],
)
def test_which_guess_is_the_same_failure(earlier: Guess, now: Guess, same: bool) -> None:
    assert now.is_again(earlier) is same
    assert Guesses().remember(earlier).knows(now) is same


guesses = st.builds(
    Guess,
    st.sampled_from("EF"),
    st.one_of(st.none(), st.integers(0, 3)),
    st.one_of(st.none(), st.integers(0, 3)),
    st.sampled_from([None, 4, 8]),
)


@given(guesses, st.lists(guesses, max_size=MOST - 1))
def test_what_is_remembered_is_known_whatever_comes_between(
    guess: Guess, rest: list[Guess]
) -> None:
    known = Guesses().remember(guess)
    for other in rest:
        known = known.remember(other)
    assert known.knows(guess)


def test_a_run_of_months_remembers_the_newest_only() -> None:
    known = Guesses()
    for number in range(10 * MOST):
        known = known.remember(Guess(f"E-{number}", number, number))
    assert len(known.known) == MOST
    assert known.knows(Guess(f"E-{10 * MOST - 1}", None, 10 * MOST - 1))


# --- what follows -------------------------------------------------------------------------------


def test_a_guess_gets_one_more_attempt_with_backoff_and_charged() -> None:
    history = started(policy(restarts=3))
    dies(history, GUESS)
    (wait,) = [decision for decision in history.decided if isinstance(decision, Wait)]
    assert 8 <= wait.seconds <= 12
    assert history.state.status is Status.BACKOFF
    assert history.state.budget.restarts == 1
    history.waits()
    history.fails(GUESS)
    assert code(history) is ExitCode.FAILED
    assert history.starts_decided == [1, 2]
    assert history.finish is not None
    assert history.finish.reason == (
        "the same failure came twice: killed (signature FileNotFoundError-1): it would come again"
    )


def test_what_was_guessed_wrongly_goes_on() -> None:
    history = started()
    history.fails(GUESS)
    history.succeeds()
    assert code(history) is ExitCode.SUCCEEDED


def test_a_certain_one_ends_the_job_at_once() -> None:
    history = started()
    history.fails(FATAL)
    assert (code(history), history.starts_decided) == (ExitCode.FAILED, [1])


@pytest.mark.parametrize("limits", [{"restarts": 0}, {"restarts": 3, "total": 0}])
def test_where_no_restart_is_left_a_guess_is_the_end_for_good(limits: dict[str, int]) -> None:
    total = limits.get("total")
    history = started(
        policy(PhasePolicy("p", limits["restarts"], 0, Success(step=9), max_total_restarts=total))
    )
    history.fails(GUESS)
    assert (code(history), history.starts_decided) == (ExitCode.FAILED, [1])
    assert history.finish is not None
    assert "killed; whether it would come again cannot be tried: " in history.finish.reason


def test_guesses_that_take_turns_are_each_known() -> None:
    history = started(policy(restarts=9))
    for failure in (GUESS, OTHER_GUESS, RETRY, SAME):
        history.fails(failure)
        assert history.finish is None
    history.fails(OTHER_GUESS)
    assert (code(history), len(history.starts_decided)) == (ExitCode.FAILED, 5)


@pytest.mark.parametrize("limit", [None, 0, 1, 4])
def test_a_guess_may_come_once_whatever_the_limit_of_other_failures_is(limit: int | None) -> None:
    phase = PhasePolicy("only", 9, 0, Success(step=100), repeated_failure_limit=limit)
    history = started(policy(phase))
    history.fails(GUESS)
    assert history.finish is None
    history.fails(GUESS)
    assert code(history) is ExitCode.FAILED


def test_after_a_commit_only_the_same_step_is_the_same() -> None:
    history = started(policy(restarts=1))
    for number in range(0, 50, 10):
        history.fails(at(number + 5), committed=number)
        assert history.finish is None, "each time at another step, after a new checkpoint"
    history.fails(at(25), committed=100)
    assert code(history) is ExitCode.FAILED


def test_a_step_that_nobody_told_is_not_the_same_after_a_commit() -> None:
    history = started(policy(restarts=1))
    history.fails(at(None), committed=10)
    history.fails(at(None), committed=20)
    assert history.finish is None
    history.fails(at(None), committed=20)
    assert code(history) is ExitCode.FAILED


@pytest.mark.parametrize("recognised", [False, True])
def test_a_step_that_the_record_does_not_know_is_that_of_the_attempt(recognised: bool) -> None:
    """But a step that is only recognised ends no job."""
    history = started(policy(restarts=9))
    for committed in (10, 20):
        history.runs()
        history.ends(WorkerExit(0, code=1))
        attempt = history.state.attempt
        gone = WorkersGone(history.now, attempt, at(None), None, 25, committed)
        history.happens(replace(gone, step_recognised=recognised))
        if history.state.backoff is not None:
            history.waits()
    assert code(history) is (None if recognised else ExitCode.FAILED)
    assert history.starts_decided == ([1, 2, 3] if recognised else [1, 2])


def test_guesses_after_new_checkpoints_are_a_livelock_that_is_told() -> None:
    history = started(policy(restarts=1))
    for number in range(3):
        history.fails(at(10 * number + 5), committed=10 * number)
    assert [d.times for d in history.decided if isinstance(d, TellLivelock)] == [3]


def test_a_launch_that_fails_as_a_guess_is_tried_once_more() -> None:
    history = started()
    history.cannot_launch(GUESS)
    history.waits()
    assert history.starts_decided == [1, 2]
    history.happens(LaunchFailed(history.now, 2, GUESS))
    assert code(history) is ExitCode.FAILED


def test_a_guess_of_a_group_that_made_way_is_known_when_it_comes_again() -> None:
    history = shrunk(regrow_at_checkpoint=True, regrow_after=0.0)
    history.runs()
    history.lost = frozenset()
    history.waits()
    history.looks()
    history.commits(5)
    assert history.state.group is not None
    assert history.state.group.makes_way
    history.ends(WorkerExit(0, code=1))
    history.gone(GUESS, committed=5)
    assert history.state.status is Status.BACKOFF
    assert history.state.budget.restarts == 1
    history.waits()
    history.looks()
    history.fails(GUESS, committed=5)
    assert code(history) is ExitCode.FAILED


# --- on a ladder --------------------------------------------------------------------------------


def fails_and_looks(history: Devices, failure: Failure) -> int | None:
    """The rung of the next attempt; None: there is none."""
    history.fails(failure)
    if history.finish is None and history.state.status is Status.PROBING:
        history.looks()
    return history.state.ladder.num_devices(history.policy.phases[0])


def test_a_guess_about_a_smaller_rung_is_tried_there_once_more_and_then_strikes_it() -> None:
    history = shrunk()
    assert fails_and_looks(history, PER_RUNG) == 4
    assert history.state.budget.restarts == 1
    assert not history.state.ladder.struck
    assert fails_and_looks(history, PER_RUNG) == 2, "the rung of 4 is disabled, and nothing charged"
    assert history.state.budget.restarts == 1
    assert fails_and_looks(history, PER_RUNG) == 2, "on this rung it is the first time"
    fails_and_looks(history, PER_RUNG)
    assert {each.num_devices for each in history.state.ladder.struck} == {4, 2}
    assert history.finish is None, "it waits for devices"


def test_a_certain_one_strikes_a_smaller_rung_at_once() -> None:
    history = shrunk()
    assert fails_and_looks(history, replace(PER_RUNG, certain=True)) == 2
    start = next(one for one in reversed(history.decided) if isinstance(one, StartWorkers))
    assert start.reason.endswith("on 4 devices: that rung is disabled")


def test_a_guess_about_a_smaller_rung_strikes_it_at_once_where_no_restart_is_left() -> None:
    phase = replace(
        policy().phases[0], max_num_restarts=0, rungs=(8, 4, 2), units=tuple("01234567")
    )
    history = Devices(policy(phase))
    history.starts()
    history.lost = frozenset("3")
    history.fails(replace(RETRY, hardware=True))
    history.looks()
    assert history.state.ladder.placement == Placement(4, tuple("0124"))
    assert fails_and_looks(history, PER_RUNG) == 2


def test_a_guess_about_the_full_rung_ends_the_job_the_second_time() -> None:
    history = Devices(shrunk().policy)
    history.starts()
    history.fails(PER_RUNG)
    assert history.finish is None
    history.fails(PER_RUNG)
    assert code(history) is ExitCode.FAILED


def test_a_guess_that_points_at_devices_is_charged_only_once_they_are_well() -> None:
    history = Devices(shrunk().policy)
    history.starts()
    guilty = replace(GUESS, hardware=True)
    (look,) = history.fails(guilty)
    assert isinstance(look, ProbeDevices)
    history.lost = frozenset("3")
    history.looks()
    assert history.state.budget.restarts == 0
    assert history.state.guesses == Guesses()
    history.lost = frozenset()
    history.fails(guilty)
    history.looks()
    assert (history.state.budget.restarts, history.finish) == (1, None)


# --- what it outlives ---------------------------------------------------------------------------


def test_a_supervisor_that_is_killed_in_the_backoff_of_a_guess_waits_it_out() -> None:
    history = started()
    dies(history, GUESS)
    delay = history.state.backoff
    history.now = 1.0
    history.starts()
    assert history.state.backoff is not None
    assert delay is not None
    assert history.state.backoff.delay == delay.delay
    assert [type(decision) for decision in history.waits()] == [StartWorkers]
    history.fails(GUESS)
    assert code(history) is ExitCode.FAILED


def test_replaying_the_events_gives_the_same_guesses() -> None:
    history = started(policy(restarts=9))
    for failure in (GUESS, OTHER_GUESS, at(7)):
        history.fails(failure)
    state = JobState()
    for event in history.events:
        state, _ = step(state, event, history.policy)
    assert state.durable() == history.state.durable()


def test_a_person_who_runs_the_command_again_has_changed_something() -> None:
    history = started()
    history.fails(GUESS)
    history.fails(GUESS)
    history.starts()
    history.fails(GUESS)
    assert history.starts_decided == [1, 2, 3, 4]


def test_what_was_interrupted_still_knows_its_guesses() -> None:
    history = started()
    history.fails(GUESS)
    history.runs()
    history.stops()
    history.ends(WorkerExit(0, code=0))
    history.gone(RETRY)
    history.starts()
    history.fails(GUESS)
    assert code(history) is ExitCode.FAILED


def test_the_next_phase_knows_nothing_of_the_guesses_of_the_last() -> None:
    history = started(TWO)
    history.fails(GUESS)
    history.succeeds()
    history.begins()
    history.fails(GUESS)
    assert history.finish is None


def test_a_job_that_has_succeeded_and_gets_a_higher_target_has_proved_its_guesses_wrong() -> None:
    history = started()
    history.fails(GUESS, committed=50)
    history.succeeds()
    history.policy = policy(PhasePolicy("only", 3, 2, Success(step=200)))
    history.starts()
    history.fails(GUESS, committed=50)
    assert history.starts_decided == [1, 2, 3, 4]


# --- in any order -------------------------------------------------------------------------------

failed = st.builds(
    lambda failure, step, committed: (replace(failure, step=step), committed),
    st.sampled_from([GUESS, OTHER_GUESS, RETRY]),
    st.one_of(st.none(), st.integers(0, 5)),
    st.integers(0, 3),
)


@given(st.lists(failed, min_size=1, max_size=20), st.integers(0, 20))
def test_only_what_came_before_ends_a_job_as_a_guess(
    failures: list[tuple[Failure, int]], restarts: int
) -> None:
    """Said again in other words: each guess is compared with all that came before it."""
    history = started(policy(PhasePolicy("p", restarts, 0, Success(step=100))))
    seen: list[tuple[str | None, int | None, int]] = []
    highest, commits, charged = -1, 0, 0
    for failure, committed in failures:
        history.fails(failure, committed)
        if committed > highest:
            highest, commits, charged = committed, commits + 1, 0
        again = failure.is_guess and any(
            signature == failure.signature
            and (before == commits or (step is not None and step == failure.step))
            for signature, step, before in seen
        )
        left = charged < restarts
        if again or not left:
            expected = ExitCode.FAILED if failure.is_guess else ExitCode.BUDGET_SPENT
            assert code(history) is expected
            return
        assert history.finish is None
        charged += 1
        if failure.is_guess:
            seen.append((failure.signature, failure.step, commits))
