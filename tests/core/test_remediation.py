"""Failures with a remedy, by histories: what is tried, in which order, and when it is enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.config.judgement import Remedy
from supervisor.core.budget import Charge
from supervisor.core.decisions import StartWorkers, Wait
from supervisor.core.events import StopSource
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import PhasePolicy
from supervisor.core.remediation import CAPACITY_WAITS, STORAGE_WAITS
from supervisor.core.state import Status
from supervisor.diagnosis.failure import Failure, Verdict, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.protocol.adjustments import ACCUMULATION, INFLIGHT, SKIP_STEPS, Adjustments
from tests.core.history import RETRY, History, policy

_POLICY = replace(RETRY, verdict=Verdict.POLICY, signature="the same every time")
MEMORY = replace(_POLICY, cause="out of memory", remedy=Remedy.LESS_AT_ONCE)
NAN = replace(_POLICY, cause="NaN", remedy=Remedy.ROLL_BACK, step=41)
BUSY = replace(_POLICY, remedy=Remedy.WAIT)
EXPIRED = replace(_POLICY, remedy=Remedy.WAIT_LONG)
NO_CAPACITY = replace(_POLICY, remedy=Remedy.WAIT_FOR_CAPACITY, charge=Charge.NOTHING)
STORAGE = replace(_POLICY, remedy=Remedy.WAIT_FOR_STORAGE, charge=Charge.NOTHING)
BOTH = (INFLIGHT, ACCUMULATION)


def started(restarts: int = 9) -> History:
    history = History(policy(restarts=restarts))
    history.starts()
    return history


def adjusted(history: History) -> Adjustments:
    return history.state.remediation.adjustments


def ended(history: History) -> ExitCode | None:
    if history.finish is None:
        return None
    drained = history.finish.exit_code in (ExitCode.DRAINED, ExitCode.STOPPED)
    assert history.finish.status is (Status.DRAINED if drained else Status.FAILED)
    return history.finish.exit_code


# --- memory ------------------------------------------------------------------------------------


def test_out_of_memory_once_again_then_with_less_then_never() -> None:
    history = started()
    history.fails(MEMORY, adjustable=BOTH)
    assert adjusted(history) == Adjustments()
    history.fails(MEMORY, adjustable=BOTH)
    assert adjusted(history) == Adjustments(inflight=2, accumulation=2)
    assert history.finish is None
    history.fails(MEMORY, adjustable=BOTH)
    assert ended(history) == ExitCode.FAILED
    assert len(history.starts_decided) == 3


@pytest.mark.parametrize(
    ("adjustable", "expected"),
    [((INFLIGHT,), Adjustments(inflight=2)), ((ACCUMULATION,), Adjustments(accumulation=2))],
)
def test_only_what_the_worker_can_do_is_asked_of_it(
    adjustable: tuple[str, ...], expected: Adjustments
) -> None:
    history = started()
    for _ in range(2):
        history.fails(MEMORY, adjustable=adjustable)
    assert adjusted(history) == expected


def test_a_program_that_offers_nothing_is_tried_once_more() -> None:
    history = started()
    history.fails(MEMORY)
    history.fails(MEMORY, adjustable=(SKIP_STEPS, "something newer"))
    assert ended(history) == ExitCode.FAILED
    assert len(history.starts_decided) == 2


def test_after_progress_memory_is_tried_anew_and_what_helped_stays() -> None:
    history = started()
    for highest in (10, 20):
        for _ in range(2):
            history.fails(MEMORY, committed=highest, adjustable=BOTH)
    assert adjusted(history) == Adjustments(inflight=4, accumulation=4)
    history.fails(RETRY, committed=30)
    assert adjusted(history) == Adjustments(inflight=4, accumulation=4)
    assert history.finish is None


def test_another_failure_between_is_no_reason_to_try_again() -> None:
    history = started()
    for failure in (MEMORY, RETRY, MEMORY, RETRY):
        history.fails(failure, adjustable=BOTH)
    assert history.finish is None
    history.fails(MEMORY, adjustable=BOTH)
    assert ended(history) == ExitCode.FAILED


# --- NaN ---------------------------------------------------------------------------------------


def test_the_same_step_twice_is_the_end() -> None:
    history = started()
    history.fails(NAN)
    assert history.finish is None
    history.fails(NAN)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.FAILED
    assert history.finish.reason.startswith("step 42 gave NaN or Inf twice, and its batch may not")
    assert history.finish.reason.endswith("skip_bad_batches of the config allows none")


def test_also_with_progress_between() -> None:
    history = started()
    history.fails(NAN, committed=30)
    history.fails(NAN, committed=40)
    assert ended(history) == ExitCode.FAILED


def test_another_step_is_another_matter() -> None:
    history = started()
    for step in (41, 42, 41, 40):
        history.fails(replace(NAN, step=step))
    assert history.finish is None


def test_where_batches_may_be_skipped_the_same_step_twice_is_skipped_for_ever() -> None:
    history = started()
    history.fails(NAN, adjustable=(SKIP_STEPS,))
    assert adjusted(history) == Adjustments()
    history.fails(NAN, adjustable=(SKIP_STEPS,))
    assert adjusted(history) == Adjustments(skip_steps=(42,))
    earlier = replace(NAN, step=6)
    for _ in range(2):
        history.fails(earlier, adjustable=(SKIP_STEPS,))
    assert adjusted(history) == Adjustments(skip_steps=(7, 42))
    for _ in range(2):
        history.fails(replace(NAN, step=50))
    assert ended(history) == ExitCode.FAILED
    assert history.finish is not None
    assert history.finish.reason.endswith("skip_bad_batches of the config allows no more")
    history.starts(committed=0)
    assert adjusted(history) == Adjustments(skip_steps=(7, 42)), "the checkpoints are of that run"


def test_a_step_that_fails_although_its_batch_is_skipped_is_the_end() -> None:
    history = started()
    for _ in range(2):
        history.fails(NAN, adjustable=(SKIP_STEPS,))
    assert history.finish is None
    history.fails(NAN, adjustable=(SKIP_STEPS,))
    assert ended(history) == ExitCode.FAILED
    assert history.finish is not None
    assert "step 42 gave NaN or Inf again, although its batch is skipped" in history.finish.reason


def test_a_program_that_does_not_tell_its_step_may_roll_back_once_for_each_checkpoint() -> None:
    unknown = replace(NAN, step=None)
    history = started()
    history.fails(unknown)
    history.fails(unknown, committed=10)
    history.fails(unknown, committed=20)
    assert history.finish is None
    history.fails(unknown, adjustable=(SKIP_STEPS,))
    assert ended(history) == ExitCode.FAILED


def test_the_next_phase_has_tactics_of_its_own() -> None:
    phases = [PhasePolicy(name, 9, success=Success(step=100)) for name in ("a", "b")]
    history = History(policy(*phases))
    history.starts()
    for _ in range(2):
        history.fails(NAN, adjustable=(SKIP_STEPS,))
    history.succeeds()
    assert history.state.phase == 1
    assert adjusted(history) == Adjustments()


def test_tactics_spend_the_budget_like_any_restart() -> None:
    for failure in (MEMORY, NAN, BUSY, EXPIRED):
        history = started(restarts=1)
        history.fails(replace(failure, step=1), adjustable=(*BOTH, SKIP_STEPS))
        history.fails(replace(failure, step=2), adjustable=(*BOTH, SKIP_STEPS))
        assert ended(history) == ExitCode.BUDGET_SPENT


# --- waiting -----------------------------------------------------------------------------------


def _delays(history: History, failure: Failure, times: int) -> list[float]:
    delays = []
    for _ in range(times):
        history.runs()
        history.ends(WorkerExit(0, code=1))
        decided = history.gone(failure)
        delays += [d.seconds for d in decided if isinstance(d, Wait)] or [0.0]
        if history.state.backoff is not None:
            history.waits()
    return delays


@pytest.mark.parametrize(
    ("failure", "nominal"),
    [
        (BUSY, [10, 20, 40, 80, 160, 300, 300, 300]),
        (EXPIRED, [80, 160, 300, 300, 300, 300, 300, 300]),
        (NO_CAPACITY, [40, 80, 160, 300, 300, 300, 300, 300]),
        (STORAGE, [0, 10, 20, 40, 80, 160, 300, 300]),
    ],
)
def test_what_takes_time_to_pass_is_given_time(failure: Failure, nominal: list[float]) -> None:
    for delay, expected in zip(_delays(started(), failure, 8), nominal, strict=True):
        assert 0.8 * expected <= delay <= 1.2 * expected


def test_no_capacity_costs_nothing_and_ends_with_69_after_an_hour_of_waiting() -> None:
    history = started(restarts=1)
    history.fails(RETRY)
    for _ in range(CAPACITY_WAITS):
        history.fails(NO_CAPACITY)
    assert history.finish is None
    assert history.now > 3000
    history.fails(NO_CAPACITY)
    assert ended(history) == ExitCode.NO_CAPACITY
    assert history.state.budget.restarts == 1


def test_after_69_the_job_goes_on_with_its_counts_and_waits_anew() -> None:
    history = started(restarts=1)
    history.fails(RETRY)
    for _ in range(CAPACITY_WAITS + 1):
        history.fails(NO_CAPACITY)
    decided = history.starts()
    assert [type(d) for d in decided] == [StartWorkers], "in the same directory"
    assert history.state.budget.restarts == 1
    history.fails(NO_CAPACITY)
    assert not history.state.status.terminal
    history.fails(RETRY)
    assert ended(history) == ExitCode.BUDGET_SPENT


def test_another_failure_ends_the_count_of_waits() -> None:
    history = started()
    for failure in (NO_CAPACITY, RETRY):
        for _ in range(CAPACITY_WAITS - 5 if failure is NO_CAPACITY else 1):
            history.fails(failure)
    for _ in range(CAPACITY_WAITS):
        history.fails(NO_CAPACITY)
    assert history.finish is None


def test_trouble_with_the_object_store_costs_nothing_and_ends_with_74_when_it_lasts() -> None:
    history = started(restarts=1)
    history.fails(RETRY)
    for _ in range(STORAGE_WAITS):
        history.fails(STORAGE)
    assert history.finish is None
    assert history.now > 600
    history.fails(STORAGE)
    assert ended(history) == ExitCode.CANNOT_WRITE
    assert history.state.budget.restarts == 1
    decided = history.starts()
    assert [type(d) for d in decided] == [StartWorkers], "in the same directory"
    history.fails(STORAGE)
    assert not history.state.status.terminal, "it waits anew"
    assert history.state.budget.restarts == 1


@pytest.mark.parametrize("works_meanwhile", [RETRY, NO_CAPACITY, 50])
def test_what_shows_that_the_store_works_ends_the_count(works_meanwhile: Failure | int) -> None:
    history = started()
    for _ in range(STORAGE_WAITS):
        history.fails(STORAGE)
    if isinstance(works_meanwhile, Failure):
        history.fails(works_meanwhile)
    else:
        history.runs()
        history.commits(works_meanwhile)
        history.ends(WorkerExit(0, code=1))
        history.gone(STORAGE)
    for _ in range(STORAGE_WAITS - 1):
        history.fails(STORAGE)
    assert history.finish is None


def test_a_stop_while_it_waits_for_capacity_is_a_drain() -> None:
    history = started()
    history.runs()
    history.ends(WorkerExit(0, code=1))
    history.gone(NO_CAPACITY)
    history.stops(StopSource.SIGTERM)
    assert ended(history) == ExitCode.DRAINED
