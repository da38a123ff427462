"""Running the command again by histories: after an end, an interruption, or a kill of it."""

from __future__ import annotations

import pytest

from supervisor.core.budget import Budget
from supervisor.core.decisions import (
    BeginPhase,
    KillWorkers,
    StartWorkers,
)
from supervisor.core.events import (
    StopRequested,
    StopSource,
    SupervisorStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import Failure, WorkerExit
from supervisor.diagnosis.success import Success
from tests.core.history import FATAL, PREEMPTED, RETRY, TWO, History, policy, started

KILLED = WorkerExit(0, signal="SIGKILL")
UNDECLARED = Success()


# --- the command is run again --------------------------------------------------------------------


def test_after_success_there_is_nothing_to_do() -> None:
    history = started()
    history.succeeds()
    history.decided.clear()
    history.starts()
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.SUCCEEDED
    assert history.finish.status is Status.SUCCEEDED
    assert history.starts_decided == []


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Success(step=100), Success(pattern="done")),
        (Success(pattern="done"), Success(step=100)),
        (Success(step=100), Success(step=50)),
    ],
)
def test_after_success_another_sign_of_it_or_a_lower_target_is_no_more_to_do(
    before: Success, now: Success
) -> None:
    history = started(policy(PhasePolicy("only", 3, 2, before)))
    history.succeeds()
    history.policy = policy(PhasePolicy("only", 3, 2, now))
    history.starts()
    assert history.starts_decided == [1]
    assert history.state.status is Status.SUCCEEDED


def test_after_success_a_grown_target_reopens_the_job() -> None:
    history = started()
    history.fails()
    history.succeeds()
    history.policy = policy(PhasePolicy("only", 3, 2, Success(step=200)))
    decided = history.happens(SupervisorStarted(0.0, "job", history.policy, None))
    assert decided == (BeginPhase(0, "the target grew from step 100 to 200"),)
    history.begins()
    assert history.starts_decided == [1, 2, 3]
    assert history.state.budget.restarts == 0


def test_after_success_a_new_phase_is_run() -> None:
    history = started(policy(TWO.phases[0]))
    history.succeeds()
    history.policy = TWO
    history.starts()
    assert history.state.phase == 1
    assert history.starts_decided == [1, 2]


def unproven(success: Success = UNDECLARED) -> History:
    """A job of two phases that has succeeded, the second by its exit code alone."""
    history = started(policy(TWO.phases[0], PhasePolicy("last", 3, 2, success)))
    history.succeeds()
    history.begins(committed=15)
    history.fails()
    history.succeeds()
    assert history.state.status is Status.SUCCEEDED
    return history


@pytest.mark.parametrize("success", [UNDECLARED, Success(exit_code=3)])
def test_an_exit_code_alone_is_not_final(success: Success) -> None:
    history = unproven(success)
    assert history.starts_decided == [1, 2, 3]
    decisions = history.starts(once=False)
    assert history.state.phase == 0
    assert [type(decision) for decision in decisions] == [StartWorkers]
    assert history.starts_decided == [1, 2, 3, 4], "attempt numbers go on"
    assert history.state.budget == Budget(), "the counts do not"


def test_a_record_begun_anew_can_succeed_and_begin_anew_again() -> None:
    history = unproven()
    history.starts(once=False)
    history.succeeds()
    history.begins()
    history.succeeds()
    assert history.state.status is Status.SUCCEEDED
    history.starts(once=False)
    assert history.starts_decided == [1, 2, 3, 4, 5, 6]


def test_an_exit_code_alone_is_final_with_once_and_in_older_journals() -> None:
    assert SupervisorStarted(0.0, "job", TWO, None).once
    history = unproven()
    history.decided.clear()
    history.starts(once=True)
    assert history.starts_decided == []
    assert history.state.status is Status.SUCCEEDED


@pytest.mark.parametrize(
    "success", [Success(step=20), Success(pattern="done"), Success(file="done")]
)
def test_a_declared_success_is_final_without_once(success: Success) -> None:
    history = unproven(success)
    history.decided.clear()
    history.starts(once=False)
    assert history.starts_decided == []
    assert history.state.status is Status.SUCCEEDED


def test_what_was_interrupted_goes_on_without_once() -> None:
    history = started(policy(PhasePolicy("only", 3, 2)))
    history.fails()
    history.runs()
    history.stops()
    history.ends(WorkerExit(0, signal="SIGTERM"))
    history.gone(PREEMPTED)
    history.starts(once=False)
    assert history.state.budget.restarts == 1


@pytest.mark.parametrize("failure", [FATAL, RETRY])
def test_after_a_failure_for_good_counts_start_at_zero_and_attempts_go_on(
    failure: Failure,
) -> None:
    history = started(policy(restarts=1))
    while history.finish is None:
        history.fails(failure, committed=30)
    attempts = len(history.starts_decided)
    decided = history.happens(SupervisorStarted(0.0, "job", history.policy, 30))
    assert [type(d) for d in decided] == [BeginPhase], "in a directory of its own"
    assert history.state.last_failure is None
    history.begins()
    assert history.state.budget.restarts == 0
    assert history.state.budget.highest == 30
    assert history.starts_decided[-1] == attempts + 1


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("changed", [False, True])
def test_how_an_attempt_of_another_command_ended_says_nothing(code: int, *, changed: bool) -> None:
    """The last supervisor ended before it had judged the attempt."""
    history = started(policy(restarts=1))
    history.runs()
    history.ends(WorkerExit(0, code=code))
    event = SupervisorStarted(history.now, "job", history.policy, None, once=False, changed=changed)
    history.happens(event)
    history.gone(None if code == 0 else RETRY)
    if changed:
        assert history.starts_decided == [1, 2]
        assert history.state.budget.restarts == 0
    elif code == 0:
        assert history.finish is not None
    else:
        assert history.state.budget.restarts == 1


def test_after_an_interruption_counts_are_kept() -> None:
    history = started()
    history.fails()
    history.runs()
    history.stops()
    history.ends(WorkerExit(0, signal="SIGTERM"))
    history.gone(PREEMPTED)
    history.starts()
    assert history.state.budget.restarts == 1
    assert history.state.budget.preemptions == 0


# --- the supervisor itself was killed ------------------------------------------------------------


def test_a_group_in_flight_is_killed_first_and_not_charged() -> None:
    history = started()
    history.runs()
    decided = history.starts()
    assert [type(d) for d in decided] == [KillWorkers]
    history.gone(None)
    assert history.starts_decided == [1, 2]
    assert history.state.budget.restarts == 0


def test_a_worker_that_had_died_before_the_supervisor_is_charged() -> None:
    history = started()
    history.runs()
    history.ends(KILLED)
    history.starts()
    history.gone(RETRY)
    assert history.state.budget.restarts == 1
    assert history.starts_decided == [1, 2]


def test_a_worker_that_ended_in_a_drain_is_not_charged() -> None:
    history = started()
    history.runs()
    history.stops()
    history.ends(WorkerExit(0, signal="SIGTERM"))
    history.starts()
    history.gone(PREEMPTED)
    assert history.state.budget.preemptions == 0
    assert history.starts_decided == [1, 2]


def test_a_drain_is_not_charged_although_two_supervisors_are_killed_over_it() -> None:
    history = started()
    history.runs()
    history.stops()
    history.ends(WorkerExit(0, signal="SIGTERM"))
    history.starts()
    history.starts()
    history.gone(PREEMPTED)
    assert history.state.budget.preemptions == 0


def test_a_group_of_which_only_some_ended_well_was_lost_not_finished() -> None:
    history = started(policy(PhasePolicy("only", 1, 1, Success())))
    history.runs(workers=2)
    history.ends(WorkerExit(1, code=0))
    history.starts()
    history.gone(None)
    assert history.starts_decided == [1, 2]
    assert history.finish is None


def test_a_group_of_which_one_failed_is_charged_after_a_crash() -> None:
    history = started()
    history.runs(workers=2)
    history.ends(WorkerExit(1, code=1))
    history.starts()
    history.gone(RETRY)
    assert history.state.budget.restarts == 1


def test_backoff_is_armed_again() -> None:
    history = started()
    history.fails()
    history.runs()
    history.ends(KILLED)
    history.gone()
    assert history.state.backoff is not None
    delay = history.state.backoff.delay
    history.now = 500.0
    history.starts()
    assert history.state.deadline == 500.0 + delay
    history.waits()
    assert history.starts_decided == [1, 2, 3]


def test_progress_made_while_no_supervisor_looked_counts() -> None:
    history = started()
    history.fails()
    history.runs()
    history.starts(committed=70)
    assert history.state.budget.restarts == 0
    assert history.state.budget.highest == 70


def test_a_terminal_job_takes_no_events() -> None:
    history = started()
    history.succeeds()
    before = history.state
    assert history.happens(StopRequested(5.0, StopSource.PERSON)) == ()
    assert history.commits(99) == ()
    assert history.state == before
