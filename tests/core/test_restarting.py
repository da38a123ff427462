"""A person wants a fresh attempt: it is not charged, and no wait stands in its way."""

from __future__ import annotations

import pytest

from supervisor.core.decisions import Decision, ProbeDevices, SignalWorkers, StartWorkers
from supervisor.core.events import RestartRequested
from supervisor.core.state import Status
from supervisor.diagnosis.failure import Failure, WorkerExit
from tests.core.history import FATAL, PREEMPTED, RETRY, History, started
from tests.core.test_machines_of_a_cluster import begun, job

WHO = "ann on h1"
REASON = f"{WHO} asked for a fresh attempt"


def restarts(history: History) -> tuple[Decision, ...]:
    return history.happens(RestartRequested(history.now, WHO))


@pytest.mark.parametrize("failure", [PREEMPTED, RETRY], ids=["saved", "killed"])
def test_a_running_attempt_saves_and_the_next_is_not_charged(failure: Failure) -> None:
    history = started()
    history.runs()
    history.commits(10)
    assert restarts(history) == (SignalWorkers(1, f"{REASON}: it saves"),)
    assert (history.told[0].event, history.told[0].keys["detail"]) == ("restart-requested", WHO)
    history.ends(WorkerExit(0, code=0))
    (start,) = history.gone(failure, committed=12)
    assert isinstance(start, StartWorkers)
    assert (start.attempt, start.reason) == (2, f"{REASON}: nothing is charged")
    assert history.state.budget.total == 0
    assert "MADE_WAY" in [line.keys.get("status") for turn in history.turns for line in turn.lines]


def test_a_failure_that_can_never_succeed_still_ends_the_job() -> None:
    history = started()
    history.runs()
    restarts(history)
    history.ends(WorkerExit(0, code=1))
    history.gone(FATAL)
    assert history.state.status is Status.FAILED


def test_a_wait_for_the_next_attempt_is_over() -> None:
    history = started()
    for _ in range(2):
        history.runs()
        history.ends(WorkerExit(0, signal="SIGKILL"))
        history.gone()
    assert history.state.status is Status.BACKOFF
    (start,) = restarts(history)
    assert isinstance(start, StartWorkers)
    assert start.reason == REASON
    assert history.told[0].text.endswith("the wait for it is over")


def test_a_wait_for_devices_is_over() -> None:
    history = job()
    history.there = ()
    history.looks()
    assert history.state.status is Status.WAITING
    (look,) = restarts(history)
    assert isinstance(look, ProbeDevices)
    history.there = ("a", "b", "c", "d")
    assert begun(history.looks()).attempt == 1


def test_an_attempt_that_starts_or_ends_is_left_alone() -> None:
    history = started()
    assert restarts(history) == ()
    history.runs()
    restarts(history)
    before = history.state
    assert restarts(history) == ()
    assert history.state == before


def test_a_job_that_stops_is_not_restarted() -> None:
    history = started()
    history.runs()
    history.stops()
    assert restarts(history) == ()
    (line,) = history.told
    assert line.text.endswith("the job stops, so there will be none")
