"""A decision says all that is needed to carry it out: nobody looks into the state for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.config.judgement import Remedy
from supervisor.core.decisions import KillWorkers, MakeRoom, StartWorkers, Wait
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.rules import DISK_FULL, FULL_DISK_RULES, RULES
from supervisor.protocol.adjustments import Adjustments
from tests.core.history import RETRY, History, policy

FULL = replace(RETRY, rule=DISK_FULL, root_cause="OSError: No space left on device")
NO_MEMORY = replace(RETRY, rule="out-of-memory", remedy=Remedy.LESS_AT_ONCE)


@pytest.fixture
def history() -> History:
    history = History(policy(restarts=9))
    history.starts()
    return history


def next_start(history: History) -> StartWorkers:
    started = history.decided[-1]
    assert isinstance(started, StartWorkers)
    return started


def test_a_start_and_a_kill_name_phase_and_directory(history: History) -> None:
    history.fails()
    killed = [each for each in history.decided if isinstance(each, KillWorkers)][-1]
    assert (killed.phase, killed.directory) == (0, "phase0")
    assert (next_start(history).phase, next_start(history).directory) == (0, "phase0")


@pytest.mark.parametrize(
    ("failure", "make_room", "trusted"),
    [
        (RETRY, None, True),
        *((replace(FULL, rule=rule), MakeRoom.IF_SHORT, False) for rule in sorted(FULL_DISK_RULES)),
        (replace(FULL, root_cause="OSError: Disk Quota exceeded"), MakeRoom.ALWAYS, False),
    ],
)
def test_a_start_says_what_follows_from_the_last_failure(
    history: History, failure: Failure, make_room: MakeRoom | None, trusted: bool
) -> None:
    history.fails(failure)
    started = next_start(history)
    assert started.make_room == make_room
    assert (started.distrust == "") == trusted
    assert failure.cause in started.distrust or trusted


def test_room_is_made_after_every_failure_that_is_called_a_full_disk() -> None:
    assert {rule.name for rule in RULES if rule.cause == "disk full"} == FULL_DISK_RULES


def test_a_start_says_how_it_differs_from_the_config(history: History) -> None:
    history.fails(NO_MEMORY, adjustable=("inflight",))
    assert next_start(history).adjustments == Adjustments()
    history.fails(NO_MEMORY, adjustable=("inflight",))
    assert next_start(history).adjustments == Adjustments(inflight=2)


@pytest.mark.parametrize("remedy", [None, Remedy.WAIT, Remedy.WAIT_LONG])
def test_a_wait_says_whether_it_is_for_a_busy_device(
    history: History, remedy: Remedy | None
) -> None:
    history.fails(replace(RETRY, remedy=remedy))
    history.fails(replace(RETRY, remedy=remedy))
    wait = [each for each in history.decided if isinstance(each, Wait)][-1]
    assert wait.device_is_busy == (remedy is Remedy.WAIT)
