"""What is said of a group that was ended because it hung, by how it then ended."""

from __future__ import annotations

from dataclasses import replace
from errno import EAGAIN, ENOENT

import pytest

from supervisor.diagnosis.failure import Evidence, Verdict
from supervisor.diagnosis.outcome import Confidence
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import hang_failure, judge, launch_failure
from supervisor.protocol.messages import Stage
from tests.core.history import RETRY
from tests.diagnosis.test_rules_reached import ended, printed

HANG = (Stage.SAVING, 12.3)
END = replace(RETRY, rank=2, exit="killed by SIGTERM", traceback="Traceback ...")


def test_a_hang_is_told_with_how_the_group_then_ended() -> None:
    failure = hang_failure(END, *HANG)
    assert (
        failure.root_cause
        == "silent for 12.3 s in stage SAVING, then ended by supervise: killed by SIGTERM"
    )
    assert (failure.rank, failure.exit, failure.traceback) == (2, END.exit, END.traceback)
    assert (failure.verdict, failure.confidence) == (Verdict.RESTART, Confidence.HIGH)


def test_a_hang_that_then_ended_as_success_does() -> None:
    failure = hang_failure(None, *HANG)
    assert failure.root_cause == "silent for 12.3 s in stage SAVING, then ended by supervise: well"
    assert (failure.rank, failure.exit, failure.traceback) == (0, "well", "")


def test_a_hang_is_told_with_the_place_where_the_group_stood() -> None:
    assert hang_failure(END, *HANG).where == ""
    assert hang_failure(END, *HANG, "/a/train.py:5 in wait").where == "/a/train.py:5 in wait"


def test_a_program_that_had_failed_for_good_and_then_hung_in_its_end_did_not_hang() -> None:
    said = replace(END, verdict=Verdict.FATAL, confidence=Confidence.HIGH, certain=False)
    assert hang_failure(said, *HANG) == said
    guessed = replace(said, confidence=Confidence.LOW)
    assert hang_failure(guessed, *HANG) == hang_failure(END, *HANG)


def test_what_the_sigterm_of_a_hang_may_have_brought_about_is_a_guess() -> None:
    handlers = ended(printed("TypeError: on_term() takes 0 positional arguments but 2 were given"))
    end = judge(handlers, Success(step=9))
    assert end is not None
    assert end.is_certain
    failure = hang_failure(end, *HANG)
    assert (failure.is_guess, failure.compared) == (True, True)
    assert failure.grounds.startswith("a guess: the group hung")


@pytest.mark.parametrize(("number", "verdict"), [(ENOENT, "FATAL"), (EAGAIN, "RESTART")])
def test_a_launch_that_fails_is_told_of_rank_0(number: int, verdict: str) -> None:
    failure = launch_failure(OSError(number, "why"), ("train",))
    assert (failure.verdict, failure.rank, failure.exit) == (verdict, 0, "not started")


def test_an_attempt_of_which_nothing_is_known_is_told_of_rank_0() -> None:
    failure = judge(Evidence(()), Success())
    assert failure is not None
    assert failure.rank == 0
