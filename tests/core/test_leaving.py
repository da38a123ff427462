"""Hosts of the running attempt are about to go: the job saves and moves off them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.decisions import Decision, KillWorkers, ProbeDevices, SignalWorkers
from supervisor.core.doing import Stopping
from supervisor.core.events import HostsLeaving, SaveMeasured, StopRequested, StopSource
from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import Status
from supervisor.diagnosis.failure import Failure, WorkerExit
from tests.core.history import FATAL, PREEMPTED, RETRY
from tests.core.test_machines_of_a_cluster import OnMachines, begun, job

WHY = "host b is about to go: Ray drains it"


def leaving(history: OnMachines, attempt: int | None = None) -> tuple[Decision, ...]:
    number = history.state.attempt if attempt is None else attempt
    return history.happens(HostsLeaving(history.now, number, WHY))


def running(**policy: object) -> OnMachines:
    """A job that trains on the machines a to d."""
    history = job(**policy)
    begun(history.looks())
    history.runs(workers=4)
    history.commits(10)
    return history


def moves_off(history: OnMachines, failure: Failure = RETRY) -> None:
    """All workers save and exit, and the group is gone: the machines are probed."""
    leaving(history)
    history.ends(*(WorkerExit(rank, code=0) for rank in range(4)))
    (look,) = history.gone(failure, committed=12)
    assert isinstance(look, ProbeDevices)
    assert look.reason == f"{WHY}: nothing is charged"


@pytest.mark.parametrize("failure", [PREEMPTED, RETRY], ids=["saved", "died meanwhile"])
def test_the_job_saves_and_a_spare_takes_the_rank(failure: Failure) -> None:
    history = running()
    (signal,) = leaving(history)
    assert signal == SignalWorkers(1, f"{WHY}: the job saves, and moves off")
    moves_off(history, failure)
    history.there = ("a", "c", "d", "e")
    start = begun(history.looks())
    assert (start.num_devices, start.units) == (8, ("a", "e", "c", "d"))
    assert history.state.budget.total == 0
    assert history.state.quarantine.units == frozenset()
    assert "MADE_WAY" in [line.keys.get("status") for turn in history.turns for line in turn.lines]


def test_without_a_spare_it_goes_on_with_fewer() -> None:
    history = running()
    moves_off(history)
    history.there = ("a", "c", "d")
    start = begun(history.looks())
    assert (start.num_devices, start.units) == (6, ("a", "d", "c"))


def test_with_too_few_left_it_waits_and_ends_with_69() -> None:
    history = running(wait_for_capacity=30.0)
    moves_off(history)
    history.there = ("a",)
    history.looks()
    assert history.state.status is Status.WAITING
    while not history.state.status.terminal:
        history.waits()
        history.looks()
    assert history.state.exit_code == ExitCode.NO_CAPACITY


def test_it_is_asked_once_and_only_while_it_runs() -> None:
    history = running()
    assert leaving(history, attempt=0) == ()
    assert len(leaving(history)) == 1
    assert leaving(history) == ()
    assert isinstance(history.waits()[0], KillWorkers), "the grace period is over"
    assert leaving(history) == ()


def test_a_long_save_has_the_time_that_it_needs() -> None:
    history = running(grace_period=5.0)
    history.happens(SaveMeasured(history.now, 1, 20.0))
    leaving(history)
    assert isinstance(history.state.doing, Stopping)
    assert history.state.doing.deadline == history.now + 60.0


def test_a_failure_that_would_come_again_still_ends_the_job() -> None:
    history = running()
    leaving(history)
    history.ends(WorkerExit(0, code=1))
    history.waits()
    history.gone(replace(FATAL, certain=True))
    assert history.state.exit_code == ExitCode.FAILED


def test_a_stop_of_the_job_comes_first() -> None:
    history = running()
    history.happens(StopRequested(history.now, StopSource.PREEMPTION))
    assert leaving(history) == ()
    history = running()
    leaving(history)
    history.happens(StopRequested(history.now, StopSource.SIGTERM))
    history.ends(*(WorkerExit(rank, code=0) for rank in range(4)))
    history.gone(PREEMPTED, committed=12)
    assert history.state.exit_code == ExitCode.DRAINED
