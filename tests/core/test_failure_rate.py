"""How often a job has failed: counted over all attempts, and told to each new one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.decisions import StartWorkers
from supervisor.core.failure_rate import FailureRate
from supervisor.diagnosis.failure import WorkerExit
from supervisor.protocol.failure_history import FailureHistory
from tests.core.history import History, started


def told(history: History) -> FailureHistory:
    """What the latest attempt was told."""
    return [one for one in history.decided if isinstance(one, StartWorkers)][-1].failures


def fails_after(history: History, seconds: float) -> None:
    history.runs()
    history.now += seconds
    history.ends(WorkerExit(0, signal="SIGKILL"))
    history.gone()
    if history.state.backoff is not None:
        history.waits()


def test_each_attempt_is_told_of_the_failures_before_it() -> None:
    history = started()
    assert told(history) == FailureHistory()
    fails_after(history, 100.0)
    assert told(history) == FailureHistory(1, 100.0)
    history.now += 5.0  # nothing runs
    fails_after(history, 20.0)
    assert told(history) == FailureHistory(2, 120.0)


def test_an_attempt_that_was_asked_to_stop_has_not_failed() -> None:
    history = started()
    history.runs()
    history.now += 100.0
    history.stops()
    history.ends(WorkerExit(0, signal="SIGTERM"))
    history.gone()
    history.now += 50.0
    history.starts()
    assert told(history) == FailureHistory(0, 100.0)


def test_an_attempt_that_was_lost_with_its_supervisor_has_failed() -> None:
    """Its time is known until its last checkpoint."""
    history = started()
    history.runs()
    history.now += 60.0
    history.commits(5)
    history.now = 7.0  # the clock of another supervisor
    history.starts(5)
    history.gone(committed=5)
    assert told(history) == FailureHistory(1, 60.0)


def test_a_launch_that_failed_has_lost_no_work() -> None:
    history = started()
    history.cannot_launch()
    if history.state.backoff is not None:
        history.waits()
    assert told(history) == FailureHistory()


@given(st.lists(st.floats(0, 1e6)))
def test_late_and_doubled_events_count_no_time_twice(times: list[float]) -> None:
    rate = FailureRate().started(0.0)
    for at in times:
        rate = rate.ran(at)
    assert abs(rate.gone(0.0).history.seconds - max([0.0, *times])) < 1e-3
