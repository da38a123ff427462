"""Losses that become NaN or Inf: when that ends an attempt, and from where the next one goes on."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from supervisor.core.decisions import Decision, FinishJob, KillWorkers, StartWorkers, Wait
from supervisor.core.events import LossesNotFinite, LossSpiked, WorkersGone
from supervisor.core.exit_codes import ExitCode
from supervisor.core.losses import Losses
from supervisor.diagnosis.failure import Confidence, Verdict
from supervisor.diagnosis.verdicts import not_finite_failure
from supervisor.protocol.adjustments import SKIP_STEPS
from supervisor.protocol.loss_spikes import LossSpike
from tests.core.history import FATAL, RETRY, History, started

FIRST = 12
"""The first step without a number as its loss."""


def reported(
    history: History,
    times: int,
    finite: int | None = FIRST - 1,
    before: int | None = 10,
    last: int | None = None,
) -> list[type[object]]:
    """The kinds of what is decided once so many such losses came in a row."""
    event = LossesNotFinite(history.now, history.state.attempt, FIRST, times, finite, before, last)
    return [type(decision) for decision in history.happens(event)]


def saved(*steps: int) -> History:
    """A job whose first attempt runs, and has committed these steps."""
    history = started()
    history.runs()
    for step in steps:
        history.commits(step)
    return history


def test_they_end_the_attempt_and_the_next_one_goes_on_from_before_them() -> None:
    history = saved(10)
    assert reported(history, 9) == []
    assert reported(history, 10) == [KillWorkers], "no SIGTERM: nothing is to be saved"
    (start,) = history.gone(RETRY, committed=10)
    assert isinstance(start, StartWorkers)
    assert "back to the newest checkpoint" in start.reason
    assert history.state.budget.restarts == 1
    failure = history.state.last_failure
    assert failure is not None
    assert (failure.rule, failure.step) == ("not-finite", FIRST - 1)


def test_at_the_second_time_at_the_same_step_the_job_ends() -> None:
    history = saved(10)
    reported(history, 10)
    history.gone(RETRY, committed=10)
    history.runs()
    assert reported(history, 10) == [KillWorkers]
    (finish,) = history.gone(RETRY, committed=10)
    assert isinstance(finish, FinishJob)
    assert finish.exit_code is ExitCode.FAILED
    assert finish.reason.startswith(f"step {FIRST} gave NaN or Inf twice")
    assert "of step 10" in history.told[-1].text, "people are told what is from before"


def test_a_program_that_can_skip_a_batch_is_asked_to() -> None:
    history = saved(10)
    for _ in range(2):
        reported(history, 10)
        (*_, last) = history.gone(RETRY, committed=10, adjustable=(SKIP_STEPS,))
        if isinstance(last, Wait):
            history.waits()
        history.runs()
    assert history.state.remediation.adjustments.skip_steps == (FIRST,)


def test_fewer_are_enough_once_a_step_was_committed_since() -> None:
    """Each further commit may replace a good checkpoint."""
    history = saved(10, FIRST)
    assert reported(history, 2) == [], "one bad batch is not the end of a healthy job"
    assert reported(history, 3) == [KillWorkers]


def test_no_attempt_goes_on_from_a_checkpoint_that_holds_them() -> None:
    history = saved(10, 15)
    reported(history, 3)
    (finish,) = history.gone(RETRY, committed=15)
    assert isinstance(finish, FinishJob)
    assert finish.exit_code is ExitCode.FAILED
    assert f"from step {FIRST} on, and step 15 was saved after that" in finish.reason
    assert "newest checkpoint from before it is that of step 10" in history.told[-1].text


def test_a_base_model_that_was_copied_is_not_saved_after_them() -> None:
    """Its step is above each one that the program has reported, and is the only one."""
    history = saved(50000)
    assert reported(history, 9, before=None, last=FIRST + 8) == []
    assert reported(history, 10, before=None, last=FIRST + 9) == [KillWorkers]
    (start,) = ended(history, committed=50000, step=FIRST + 9)
    assert isinstance(start, StartWorkers)
    assert history.state.budget.restarts == 1


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        ((FIRST + 2,), FIRST + 2),
        # A program that reports some of its steps may have saved one of the others.
        ((10, FIRST + 2), FIRST),
        # An older supervisor has not told the last one.
        ((FIRST + 2,), None),
    ],
)
def test_a_step_of_the_programs_own_is_saved_after_them(
    steps: tuple[int, ...], last: int | None
) -> None:
    history = saved(*steps)
    assert reported(history, 3, last=last) == [KillWorkers]
    (finish,) = ended(history, committed=FIRST + 2, step=last)
    assert isinstance(finish, FinishJob)
    assert finish.exit_code is ExitCode.FAILED


def ended(history: History, committed: int, step: int | None) -> tuple[Decision, ...]:
    """The group is gone; `step` is the last one that it had reported."""
    gone = WorkersGone(history.now, history.state.attempt, RETRY, None, step, committed)
    return history.happens(gone)


def test_losses_that_were_never_numbers_show_nothing() -> None:
    history = saved(10)
    assert reported(history, 1000, finite=None) == []
    assert history.told == []


def test_an_attempt_after_them_need_not_have_had_a_number() -> None:
    """A later supervisor does not know what was reported before."""
    history = saved(10)
    reported(history, 10)
    history.gone(RETRY, committed=10)
    history.runs()
    assert reported(history, 10, finite=None) == [KillWorkers]


def test_what_is_of_another_attempt_or_comes_too_late_is_dropped() -> None:
    history = saved(10)
    late = LossesNotFinite(0.0, history.state.attempt + 1, FIRST, 10, FIRST - 1, 10)
    assert history.happens(late) == ()
    assert history.told == []
    history.stops()
    assert reported(history, 10) == []


@pytest.mark.parametrize(
    ("finite", "before", "said"),
    [
        (
            FIRST - 1,
            10,
            "is of step 10, as far as is seen; the attempt is ended if the losses stay so",
        ),
        (None, None, "no checkpoint from before it is known; no loss was finite before it"),
    ],
)
def test_people_are_told_at_the_first_one(
    finite: int | None, before: int | None, said: str
) -> None:
    history = saved(10)
    reported(history, 1, finite, before)
    (line,) = history.told
    assert (line.event, line.level) == ("loss-not-finite", "warning")
    assert said in line.text
    reported(history, 2, finite, before)
    assert history.told == []


def test_an_error_that_the_program_found_itself_is_the_failure() -> None:
    said = replace(FATAL, confidence=Confidence.HIGH)
    assert not_finite_failure(said, FIRST, 3, None, None) == said
    failure = not_finite_failure(RETRY, FIRST, 3, None, None)
    assert failure.verdict is Verdict.POLICY
    assert "No checkpoint from before it is known" in failure.advice


def test_one_that_is_finite_again_forgets_those_before() -> None:
    losses = Losses().reported(1, 2.0, ()).reported(2, nan, ()).reported(3, inf, ())
    assert (losses.since, losses.times, losses.finite) == (2, 2, 1)
    assert losses.reported(4, 1.5, ()) == Losses(finite=4)


def test_the_newest_checkpoint_from_before_them_is_remembered() -> None:
    losses = Losses().reported(11, 2.0, ()).reported(12, nan, (5, 10, 12))
    assert losses.before == 10
    assert losses.reported(13, nan, (5, 10, 12, 13)).before == 10


def test_an_attempt_that_resumes_from_them_goes_on_with_them() -> None:
    losses = Losses().reported(11, 2.0, ()).reported(12, nan, (10,)).attempt_began()
    assert losses.times == 0
    again = losses.reported(16, nan, (15,))
    assert (again.since, again.times, again.before) == (12, 1, 10)


def test_an_attempt_that_meets_them_earlier_counts_from_there() -> None:
    losses = Losses().reported(11, 2.0, ()).reported(12, nan, (5, 10)).attempt_began()
    again = losses.reported(8, nan, (5,))
    assert (again.since, again.times, again.before) == (8, 1, 5)


def test_twice_without_a_new_checkpoint_is_enough_where_the_step_is_not_known() -> None:
    """A program that reports each tenth step: either of ten may have given it."""
    history = saved(10)
    reported(history, 10, finite=10, before=10)
    history.gone(RETRY, committed=10)
    assert history.state.last_failure is not None
    assert history.state.last_failure.step is None
    history.runs()
    reported(history, 10, finite=10, before=10)
    (finish,) = history.gone(RETRY, committed=10)
    assert isinstance(finish, FinishJob)
    assert finish.reason.startswith("NaN or Inf came twice without a new checkpoint")


def test_of_steps_that_were_read_together_the_first_counts_and_the_last_finite_one() -> None:
    losses = Losses().reported(11, 2.0, (), first=5).reported(20, nan, (), first=12)
    assert (losses.finite, losses.since, losses.times) == (11, 12, 1)


def test_losses_that_stand_out_are_remembered_by_step_and_end_nothing() -> None:
    history = saved(10)

    def spikes(attempt: int, *steps: int) -> list[int]:
        for step in steps:
            spike = LossSpike(step, 9.0, 2.0, 2.5)
            assert history.happens(LossSpiked(history.now, attempt, spike)) == ()
        return [each.step for each in history.state.loss_spikes]

    assert spikes(1, 12, 40) == [12, 40]
    reported(history, 10)
    history.gone(RETRY, committed=10)
    assert spikes(1, 41) == [12, 40], "that attempt has ended"
    history.runs()
    assert spikes(2, 12) == [12], "its steps are run again"
    assert spikes(2, *range(20, 30)) == [*range(22, 30)]
