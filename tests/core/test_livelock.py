"""The same failure after each new checkpoint: told, with its goodput, and bounded if asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.decisions import TellLivelock
from supervisor.core.events import WorkerReported
from supervisor.core.exit_codes import ExitCode
from supervisor.core.livelock import EVERY, FIRST
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.diagnosis.failure import Failure, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.narrative.findings import finding_lines
from supervisor.protocol.messages import StepMessage
from tests.core.history import FREE, PREEMPTED, RETRY, SAME, History, policy, started

BOOM = replace(SAME, root_cause="RuntimeError: boom at step 10", signature="RuntimeError-1")


def bounded(total: int | None, restarts: int = 3, preemptions: int = 2) -> RestartPolicy:
    success = Success(step=10_000)
    return policy(
        PhasePolicy("only", restarts, preemptions, success, max_total_restarts=total),
    )


def commits_and_fails(history: History, number: int) -> None:
    """One more attempt: 6 s to its first step, 4 s to its checkpoint, and 10 s to its failure."""
    boom = replace(BOOM, root_cause=f"RuntimeError: boom at step {number}")
    history.runs()
    history.now += 6.0
    step = StepMessage(10 * number - 9)
    history.happens(WorkerReported(history.now, history.state.attempt, 0, step))
    history.now += 4.0
    history.commits(10 * number)
    history.now += 10.0
    history.ends(WorkerExit(0, code=1))
    history.gone(boom)


def told(history: History) -> list[TellLivelock]:
    return [each for each in history.decided if isinstance(each, TellLivelock)]


def test_the_same_failure_after_each_new_checkpoint_is_told_with_its_goodput() -> None:
    history = started(bounded(None))
    for number in range(1, FIRST + 1):
        assert told(history) == []
        commits_and_fails(history, number)
    (warning,) = told(history)
    assert warning.times == FIRST
    assert warning.failure == "RuntimeError: boom at step 3"
    assert warning.total == FIRST
    # From the first failure on: two attempts of 20 s, of which 4 s each became committed steps.
    assert (warning.seconds, warning.productive) == (40.0, 8.0)
    assert warning.goodput == pytest.approx(0.2)


def test_it_is_told_again_only_now_and_then() -> None:
    history = started(bounded(None))
    for number in range(1, 2 * EVERY + 3):
        commits_and_fails(history, number)
    assert [each.times for each in told(history)] == [FIRST, EVERY, 2 * EVERY]


@pytest.mark.parametrize("failures", [(BOOM, RETRY), (PREEMPTED,), (FREE,)])
def test_failures_that_differ_or_are_no_faults_of_the_job_are_no_livelock(
    failures: tuple[Failure, ...],
) -> None:
    history = started(bounded(None))
    for number in range(1, 12):
        history.fails(failures[number % len(failures)], committed=number)
    assert len(history.starts_decided) == 12
    assert told(history) == []


def test_the_same_failure_without_progress_is_the_budgets() -> None:
    history = started(bounded(None, restarts=8))
    for _ in range(8):
        history.fails(RETRY)
    assert told(history) == []


def test_a_supervisor_that_starts_anew_counts_on() -> None:
    history = started(bounded(None))
    for number in range(1, FIRST):
        commits_and_fails(history, number)
    history.starts()
    history.gone()
    commits_and_fails(history, FIRST)
    assert [each.times for each in told(history)] == [FIRST]


def test_what_nothing_refills_ends_the_job() -> None:
    history = started(bounded(4))
    for number in range(1, 6):
        commits_and_fails(history, number)
    assert len(history.starts_decided) == 1 + 4
    assert history.finish is not None
    assert history.finish.exit_code is ExitCode.BUDGET_SPENT
    assert "all 4 restarts of max_total_restarts are spent" in history.finish.reason


def test_a_budget_without_progress_is_spent_first() -> None:
    history = started(bounded(3, restarts=2))
    for _ in range(3):
        history.fails(RETRY)
    assert history.finish is not None
    assert "2 restarts without a new checkpoint" in history.finish.reason


@given(
    st.integers(0, 6),
    st.lists(
        st.tuples(st.sampled_from([BOOM, RETRY, PREEMPTED, FREE]), st.booleans(), st.booleans()),
        max_size=40,
    ),
)
def test_never_more_charged_restarts_than_it_says(
    total: int, faults: list[tuple[Failure, bool, bool]]
) -> None:
    history = started(bounded(total, restarts=min(total, 3)))
    free = step = 0
    for failure, progress, supervisor_dies in faults:
        step += progress
        if supervisor_dies:
            history.now += 1.0
            history.starts()
            history.gone()
            free += 1
        before = len(history.starts_decided)
        history.fails(failure, committed=step or None)
        if history.state.status.terminal:
            break
        free += (len(history.starts_decided) - before) * (failure is FREE)
        assert history.state.budget.total <= total
    charged = len(history.starts_decided) - 1 - free
    assert charged <= total


@pytest.mark.parametrize(("productive", "level"), [(79.0, "warning"), (92.0, "info")])
def test_a_job_that_advances_all_the_same_is_no_reason_for_a_warning(
    productive: float, level: str
) -> None:
    (line,) = finding_lines(TellLivelock("RuntimeError: boom", 3, 3, 100.0, productive), None)
    assert line.level == level
    assert ("progress livelock" in line.text) == (level == "warning")
    assert f"{productive:.0f}% became committed steps" in line.text
