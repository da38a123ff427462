"""The decision core by histories: what is decided when this happens to a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.decisions import (
    BeginPhase,
    KillWorkers,
    StartWorkers,
    Wait,
)
from supervisor.core.events import (
    CheckpointCommitted,
    DeadlineReached,
    SupervisorStarted,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import Failure, WorkerExit
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.rules.rule import Rule
from supervisor.diagnosis.rules.wording import FIX_CODE
from supervisor.diagnosis.success import Success
from tests.core.history import (
    FATAL,
    FREE,
    OTHER,
    PREEMPTED,
    RETRY,
    SAME,
    TWO,
    History,
    policy,
    started,
)

KILLED = WorkerExit(0, signal="SIGKILL")


def test_a_new_job_begins_its_phase_and_then_starts_attempt_1() -> None:
    history = started()
    assert [type(d) for d in history.decided] == [BeginPhase, StartWorkers]
    assert history.starts_decided == [1]


@pytest.mark.parametrize("budget", [0, 1, 3])
@pytest.mark.parametrize("progress_first", [False, True])
def test_exactly_n_restarts_without_progress(budget: int, progress_first: bool) -> None:
    """The boundary in both orders: also when the first failure comes right after progress."""
    history = started(policy(restarts=budget))
    if progress_first:
        history.runs()
        history.commits(10)
        history.ends(KILLED)
        history.gone(RETRY, committed=10)
    while history.finish is None:
        history.fails(committed=10 if progress_first else None)
    assert history.finish.exit_code == ExitCode.BUDGET_SPENT
    restarts = "restart" if budget == 1 else "restarts"
    assert f"the budget of {budget} {restarts} without" in history.finish.reason
    assert len(history.starts_decided) == 1 + budget


def test_progress_between_failures_refills_the_budget_for_ever() -> None:
    history = started(policy(restarts=1))
    for number in range(50):
        history.fails(committed=number)
    assert history.finish is None
    assert len(history.starts_decided) == 51


def test_progress_is_seen_while_the_trainer_runs_and_only_above_the_highest_step() -> None:
    history = started()
    history.fails(committed=50)
    history.fails(committed=50)
    history.runs()
    assert history.state.budget.restarts == 2
    history.commits(40)
    history.commits(50)
    assert history.state.budget.restarts == 2
    history.commits(51)
    assert history.state.budget.restarts == 0


def test_the_highest_step_never_falls_when_checkpoints_vanish() -> None:
    history = started()
    history.fails(committed=50)
    history.fails(committed=20)
    assert history.state.budget.highest == 50
    assert history.state.budget.restarts == 2


@pytest.mark.parametrize(
    ("failure", "code"), [(FATAL, ExitCode.FAILED), (RETRY, ExitCode.BUDGET_SPENT)]
)
def test_how_a_failed_job_ends(failure: Failure, code: ExitCode) -> None:
    history = started(policy(restarts=0))
    history.fails(failure)
    assert history.finish is not None
    assert (history.finish.status, history.finish.exit_code) == (Status.FAILED, code)


@pytest.mark.parametrize(
    ("limit", "committed", "attempts"),
    [(None, None, 2), (None, 50, 3), (1, None, 1), (4, 50, 4), (0, None, 10), (0, 50, 10)],
)
def test_the_same_failure_ends_the_job_before_the_budget_does(
    limit: int | None, committed: int | None, attempts: int
) -> None:
    """Twice before the first checkpoint of the phase, three times after; a zero is no limit."""
    phase = PhasePolicy("only", 9, 0, Success(step=100), repeated_failure_limit=limit)
    history = History(policy(phase))
    history.starts(committed)
    while history.finish is None:
        history.fails(SAME, committed)
    assert len(history.starts_decided) == attempts
    code = ExitCode.BUDGET_SPENT if limit == 0 else ExitCode.FAILED
    assert (history.finish.status, history.finish.exit_code) == (Status.FAILED, code)
    assert ("ValueError-1" in history.finish.reason) is (limit != 0)


def test_progress_forgets_the_failures_before_it() -> None:
    history = started(policy(restarts=1))
    for step in range(20):
        history.fails(SAME, committed=step)
    assert history.finish is None


def test_failures_that_take_turns_are_counted_each() -> None:
    history = started(policy(restarts=9))
    for failure in (SAME, OTHER, RETRY, SAME):
        history.fails(failure)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.FAILED


def test_what_has_no_signature_spends_the_budget_alone() -> None:
    history = started(policy(restarts=5))
    while history.finish is None:
        history.fails(RETRY)
    assert len(history.starts_decided) == 6


def test_the_repetitions_of_a_failed_job_are_forgotten_when_it_is_run_again() -> None:
    history = started(policy(restarts=9))
    history.fails(SAME)
    history.fails(SAME)
    assert len(history.starts_decided) == 2
    history.starts()
    history.fails(SAME)
    assert history.starts_decided == [1, 2, 3, 4]


def test_a_preemption_spends_its_own_budget() -> None:
    history = started(policy(restarts=0, preemptions=2))
    history.fails(PREEMPTED)
    history.fails(PREEMPTED)
    assert history.finish is None
    history.fails(PREEMPTED)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.BUDGET_SPENT


@pytest.mark.parametrize(
    "rule", [each for each in RULES if "is restarted" in each.advice], ids=lambda rule: rule.name
)
def test_no_advice_says_that_a_job_which_ends_is_restarted(rule: Rule) -> None:
    history = started(policy(restarts=0, preemptions=0))
    failure = replace(RETRY, advice=rule.advice, cause=rule.cause, charge=rule.charge)
    history.fails(failure)
    assert history.finish is not None
    assert history.state.last_failure is not None
    told = history.state.last_failure.advice
    assert told.startswith(f"The last failure was: {rule.cause}. ")
    assert "restarted" not in told
    assert "None needed" not in told
    assert "If it comes back" not in told


@pytest.mark.parametrize(
    "rule",
    [each for each in RULES if each.advice.startswith(("If it comes back,", "If it comes back:"))],
    ids=lambda rule: rule.name,
)
def test_no_advice_at_the_end_waits_for_the_failure_to_come_back(rule: Rule) -> None:
    history = started(policy(restarts=0))
    history.fails(replace(RETRY, advice=rule.advice, cause=rule.cause))
    assert history.state.last_failure is not None
    told = history.state.last_failure.advice
    assert not told.startswith("If it comes back")
    assert told[:1].isupper()
    assert told[1:] == rule.advice.partition("If it comes back")[2][3:]


@pytest.mark.parametrize("committed", [None, 3])
def test_the_advice_at_the_end_speaks_of_a_checkpoint_only_where_there_is_one(
    committed: int | None,
) -> None:
    history = started(policy(restarts=0))
    history.fails(replace(FATAL, advice=FIX_CODE), committed=committed)
    assert history.finish is not None
    assert history.state.last_failure is not None
    told = history.state.last_failure.advice
    assert told.startswith("Fix the program; run the same command again")
    assert ("checkpoint" in told) == (committed is not None)


def test_progress_refills_the_preemptions_too() -> None:
    history = started(policy(preemptions=1))
    for number in range(10):
        history.fails(PREEMPTED, committed=number)
    assert history.finish is None


def test_what_is_free_of_charge_spends_nothing() -> None:
    history = started(policy(restarts=0, preemptions=0))
    for _ in range(10):
        history.fails(FREE)
    assert history.finish is None


def test_backoff_none_before_the_first_retry_then_doubling_and_reset_by_progress() -> None:
    history = started(policy(restarts=9))
    delays = []
    for _ in range(9):
        history.runs()
        history.ends(KILLED)
        decided = history.gone()
        delays += [d.seconds for d in decided if isinstance(d, Wait)] or [0.0]
        if history.state.backoff is not None:
            history.waits()
    expected = [0, 10, 20, 40, 80, 160, 300, 300, 300]
    for delay, nominal in zip(delays, expected, strict=True):
        assert nominal * 0.8 <= delay <= nominal * 1.2
    assert len(set(delays[-3:])) == 3, "jitter differs from attempt to attempt"
    history.runs()
    history.commits(7)
    history.ends(KILLED)
    assert not any(isinstance(d, Wait) for d in history.gone(committed=7))


def test_why_an_attempt_starts() -> None:
    history = started()
    history.fails()
    history.fails()
    assert [d.reason for d in history.decided if isinstance(d, StartWorkers)] == [
        "phase 'only' starts",
        "attempt 1 failed: killed",
        "attempt 2 failed: killed",
    ]


def test_no_attempt_starts_before_the_last_is_confirmed_gone() -> None:
    history = started()
    history.runs()
    decided = history.ends(KILLED)
    assert [type(d) for d in decided] == [KillWorkers]
    history.now += 1000.0
    assert [type(d) for d in history.waits()] == [KillWorkers]
    assert history.starts_decided == [1]
    history.gone()
    assert history.starts_decided == [1, 2]


@pytest.mark.parametrize(
    "event",
    [
        WorkersStarted(9.0, 1, (5,)),
        WorkersObserved(9.0, 1, (5,), (KILLED,)),
        WorkersGone(9.0, 1, RETRY, None, None, None),
    ],
)
def test_events_of_an_earlier_attempt_change_nothing(event: WorkersGone) -> None:
    history = started()
    history.fails()
    before = history.state
    assert history.happens(event) == ()
    assert history.state == before


def test_a_failure_is_charged_once_although_it_is_told_twice() -> None:
    history = started()
    history.runs()
    history.ends(KILLED)
    history.ends(KILLED)
    history.gone()
    history.happens(WorkersGone(history.now, 1, RETRY, None, None, None))
    assert history.state.budget.restarts == 1
    assert history.starts_decided == [1, 2]


def test_one_rank_dies_and_the_others_get_a_moment_and_no_more() -> None:
    history = started()
    history.runs(workers=3)
    assert history.ends(WorkerExit(1, code=1)) == ()
    assert history.state.status is Status.STOPPING
    assert [type(d) for d in history.waits()] == [KillWorkers]
    assert history.now == pytest.approx(history.policy.farewell)


def test_ranks_that_end_well_one_after_the_other_are_waited_for() -> None:
    history = started()
    history.runs(workers=2)
    history.ends(WorkerExit(1, code=0))
    assert history.state.deadline is None
    decided = history.ends(WorkerExit(1, code=0), WorkerExit(0, code=0))
    assert [type(d) for d in decided] == [KillWorkers]


def test_lost_answer_to_start_is_made_good_by_the_next_observation() -> None:
    history = started()
    history.happens(WorkersObserved(1.0, 1, (5,), ()))
    assert history.state.status is Status.RUNNING
    history.ends(KILLED)
    assert history.state.group is not None
    assert history.state.group.killing


def test_a_start_that_nothing_answers_counts_as_failed_in_the_end() -> None:
    history = started()
    assert history.state.deadline == history.policy.launch_timeout
    assert [type(d) for d in history.waits()] == [KillWorkers]
    history.gone(RETRY)
    assert history.state.budget.restarts == 1
    assert history.starts_decided == [1, 2]


def test_an_answered_start_has_no_deadline() -> None:
    history = started()
    history.runs()
    assert history.state.deadline is None


def test_a_phase_that_nothing_answers_is_begun_again() -> None:
    history = History(policy())
    history.happens(SupervisorStarted(0.0, "job", history.policy, None))
    assert history.state.deadline == history.policy.confirm_interval
    assert [type(d) for d in history.waits()] == [BeginPhase]
    assert history.state.deadline == 2 * history.policy.confirm_interval
    history.begins()
    assert history.starts_decided == [1]
    assert history.state.deadline == history.now + history.policy.launch_timeout


def test_ranks_that_end_as_success_asks_for_are_waited_for() -> None:
    history = started(policy(PhasePolicy("only", 1, 1, Success(exit_code=3))))
    history.runs(workers=3)
    history.ends(WorkerExit(1, code=3))
    assert history.state.deadline is None
    history.ends(WorkerExit(1, code=3), WorkerExit(0, code=0))
    assert history.state.deadline is not None


def test_progress_made_before_the_phase_had_its_directory_counts() -> None:
    history = History(policy())
    history.happens(SupervisorStarted(0.0, "job", history.policy, None))
    history.begins(committed=30)
    assert history.state.budget.highest == 30


def test_a_deadline_that_has_not_come_begins_no_phase_and_kills_nobody() -> None:
    history = History(policy())
    assert history.happens(DeadlineReached(0.0)) == (), "not even before there is a job"
    history.happens(SupervisorStarted(0.0, "job", history.policy, None))
    assert history.happens(DeadlineReached(history.policy.confirm_interval - 0.1)) == ()
    history.begins()
    assert history.happens(DeadlineReached(history.policy.launch_timeout - 0.1)) == ()
    history.runs()
    assert history.happens(DeadlineReached(1e9)) == ()


@pytest.mark.parametrize("again", [False, True])
def test_an_answer_that_is_told_again_changes_nothing(again: bool) -> None:
    history = started()
    history.runs(workers=2)
    if again:
        history.stops()
    before = history.state
    assert history.runs(workers=2) == ()
    assert history.ends() == ()
    assert history.state == before


def test_an_exit_that_is_told_again_gives_the_others_no_more_time() -> None:
    history = started()
    history.runs(workers=2)
    history.ends(WorkerExit(1, code=1))
    deadline = history.state.deadline
    history.now = 1.0
    history.ends(WorkerExit(1, code=1))
    assert history.state.deadline == deadline


def test_what_is_told_of_a_group_that_is_being_killed_is_not_acted_on() -> None:
    history = started()
    history.runs(workers=2)
    history.ends(WorkerExit(1, code=1))
    history.waits()
    both = (WorkerExit(1, code=1), WorkerExit(0, signal="SIGKILL"))
    assert history.ends(*both) == ()
    assert history.stops() == ()
    assert history.state.group is not None
    assert history.state.group.killing


def test_workers_that_start_only_while_they_are_killed_are_not_let_go() -> None:
    history = started()
    history.waits()
    before = history.state
    assert history.runs() == ()
    assert history.state == before


def test_a_group_that_nobody_asked_to_be_killed_is_not_gone() -> None:
    history = started()
    history.runs()
    assert history.gone() == ()
    assert history.state.group is not None


def test_why_a_group_is_killed() -> None:
    def reason(decisions: tuple[object, ...]) -> str:
        (kill,) = decisions
        assert isinstance(kill, KillWorkers)
        return kill.reason

    history = started()
    assert reason(history.waits()) == "nothing tells that its workers were started"
    assert reason(history.waits()) == "the processes of the attempt are not confirmed gone yet"
    history.gone()
    history.runs()
    assert reason(history.ends(KILLED)) == "the worker ended: killed by SIGKILL"
    history.gone()
    history.waits()
    history.runs(workers=3)
    history.ends(WorkerExit(2, code=1), WorkerExit(0, code=0))
    told = "these workers ended: rank 2 exit code 1, rank 0 exit code 0"
    assert reason(history.waits()) == told
    history.gone()
    history.waits()
    history.runs()
    history.stops()
    assert reason(history.waits()) == "the grace period is over"


# --- phases --------------------------------------------------------------------------------------


def test_phases_run_in_order_each_with_its_own_budget_and_progress() -> None:
    history = started(TWO)
    history.fails(committed=10)
    history.succeeds()
    assert history.state.phase == 1
    assert history.state.last_failure is None
    assert history.decided[-1] == BeginPhase(1, "phase 'one' succeeded")
    assert history.state.directory is None
    assert history.state.budget.restarts == 0
    assert history.state.budget.highest is None, "steps start at 0 in each phase"
    history.begins()
    history.fails(committed=5)
    assert history.state.budget.highest == 5
    history.succeeds()
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.SUCCEEDED
    assert history.starts_decided == [1, 2, 3, 4], "attempt numbers are of the job"


def test_the_next_phase_starts_only_after_success() -> None:
    history = started(TWO)
    history.fails(FATAL)
    assert history.finish is not None
    assert history.state.phase == 0


def test_a_stop_between_phases_resumes_in_the_next() -> None:
    history = started(TWO)
    history.runs()
    history.stops()
    history.ends(WorkerExit(0, code=0))
    history.gone(None)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED
    history.starts()
    assert history.state.phase == 1


def test_a_commit_of_another_phase_is_not_progress() -> None:
    history = started(TWO)
    history.succeeds()
    history.begins()
    history.fails()
    history.happens(CheckpointCommitted(1.0, 0, 99))
    assert history.state.budget.restarts == 1
    assert history.state.budget.highest is None
