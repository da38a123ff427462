"""What is said of a job that has ended: what its exit code says, and what comes next."""

from __future__ import annotations

import pytest

from supervisor.core.exit_codes import ExitCode
from supervisor.narrative.job_end import code_in_words, what_is_next


@pytest.mark.parametrize("code", ExitCode)
def test_what_comes_next_agrees_with_what_a_service_manager_does(code: ExitCode) -> None:
    told = " ".join(what_is_next(code, 7, known=False))
    assert (told == "") == (code is ExitCode.SUCCEEDED)
    assert ("a service manager runs the same command again" in told) == code.run_again
    assert ("with a full budget of restarts" in told) >= code.for_good
    assert ("goes on from the checkpoint of step 7" in told) == bool(told)


def test_without_a_checkpoint_the_job_begins_anew() -> None:
    (told,) = what_is_next(ExitCode.STOPPED, None, known=False)
    assert told.endswith("the same command begins at the first step")


def test_what_is_not_seen_may_be_where_a_program_goes_on() -> None:
    (told,) = what_is_next(ExitCode.STOPPED, None, known=False, is_sure=False)
    assert told.endswith("the same command begins at the first step, as far as is seen")
    (told,) = what_is_next(ExitCode.STOPPED, 7, known=False, is_sure=False)
    assert told.endswith("goes on from the checkpoint of step 7")


def test_of_a_later_phase_it_is_said_that_those_before_it_are_complete() -> None:
    (told,) = what_is_next(ExitCode.STOPPED, None, known=False, later_phase="tune")
    assert told.endswith("begins at the first step of phase 'tune' (those before it are complete)")


def test_a_command_that_is_refused_is_not_said_to_go_on_as_it_is() -> None:
    (told,) = what_is_next(ExitCode.FAILED, None, known=True, is_refused=True)
    assert told.endswith(
        "this command was refused: once it is corrected, it begins at the first step:"
    )


def test_an_exit_code_is_told_in_words_where_it_needs_some() -> None:
    assert code_in_words(0) == "exit code 0"
    assert code_in_words(76) == "exit code 76 (a restart budget is spent)"
