"""What people are notified of: one message for what happened at once, and none for the rest."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core.state import Status
from supervisor.narrative.event_line import Line, attempt_event, job_event
from supervisor.narrative.notification import Notifications

FAILED = attempt_event(
    "attempt-failed",
    1,
    "failed: crashed; root cause: killed by SIGSEGV",
    "error",
    rank=0,
    step=7,
    code="crash",
    verdict="RESTART",
    cause="crashed",
    root_cause="killed by SIGSEGV",
    place="train.py:81",
)
ENDED = attempt_event("attempt-ended", 1, "ended at step 7: FAILED")
ADVICE = attempt_event("advice", 1, "what to do: look", code="crash", advice="look")
AGAIN = job_event("attempt-started", "starting attempt 2 from committed step 5 (crashed)")
FIRST = job_event("attempt-started", "starting attempt 1 from the beginning")
BACKOFF = job_event("backoff", "waiting 10.0 s before attempt 2")


def finished(status: Status) -> Line:
    return job_event("job-ended", f"{status}, exit code 0", status=status, code=0, failure=None)


def kinds(*transitions: list[Line]) -> list[tuple[str, ...] | None]:
    fold = Notifications()
    told = [fold.take(lines) for lines in transitions]
    return [None if each is None else each.kinds for each in told]


def test_a_failure_and_the_restart_after_it_are_one_message_with_all_that_helps() -> None:
    told = Notifications().take([ENDED, FAILED, ADVICE, AGAIN])
    assert told is not None
    assert told.kinds == ("failure", "restart")
    assert told.title == "attempt 1: failed: crashed; root cause: killed by SIGSEGV"
    assert told.details == (
        "attempt 1: what to do: look",
        "starting attempt 2 from committed step 5 (crashed)",
    )
    assert told.keys["attempt"] == 1
    assert told.keys["place"] == "train.py:81"
    assert told.keys["advice"] == "look"


def test_a_restart_after_a_backoff_is_a_message_of_its_own() -> None:
    assert kinds([FIRST], [ENDED, FAILED, BACKOFF], [AGAIN]) == [None, ("failure",), ("restart",)]


def test_the_first_attempt_of_a_phase_is_no_restart() -> None:
    began = job_event("phase-began", "phase 'two' begins")
    assert kinds([FIRST], [ENDED], [began], [AGAIN]) == [None] * 4


def test_another_supervisor_that_goes_on_restarts() -> None:
    resumed = job_event("job-resumed", "job resumed")
    assert kinds([resumed], [AGAIN]) == [None, ("restart",)]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status.SUCCEEDED, ("finish",)),
        (Status.DRAINED, ("finish",)),
        (Status.FAILED, ("finish", "person")),
    ],
)
def test_the_end_of_the_job_needs_a_person_only_if_it_failed(
    status: Status, expected: tuple[str, ...]
) -> None:
    assert kinds([finished(status)]) == [expected]


@pytest.mark.parametrize(("number", "expected"), [(2, ("shrink",)), (8, None)])
def test_only_fewer_devices_are_told(number: int, expected: Any) -> None:
    changed = job_event("rung-changed", "the job changes", "warning", before=4, num_devices=number)
    assert kinds([changed]) == [expected]


def test_a_wait_for_devices_is_told_once_until_it_is_over() -> None:
    awaits = job_event("capacity-awaited", "too few devices", "warning")
    person = ("person",)
    assert kinds([awaits], [awaits], [FIRST], [awaits]) == [person, None, None, person]
