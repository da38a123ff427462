"""A machine whose accelerator cannot be used is replaced, where somebody does that; elsewhere it is
the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.config.judgement import Remedy
from supervisor.core.decisions import FinishJob
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.outcome import Verdict
from supervisor.diagnosis.success import Success
from supervisor.diagnosis.verdicts import hang_failure
from supervisor.protocol.messages import Stage
from tests.core.history import RETRY, History, policy

BUSY = replace(
    RETRY, rule="busy-accelerator", cause="busy", hardware=True, machine=True, remedy=Remedy.WAIT
)
BACKEND = replace(RETRY, rule="backend-failed", hardware=True, machine=True, signature="RuntimeE-1")


def ends(failure: Failure, policy: RestartPolicy) -> tuple[History, FinishJob]:
    """A job that fails so until it ends."""
    history = History(policy)
    history.starts()
    for _ in range(9):
        history.fails(failure)
        if isinstance(end := history.decided[-1], FinishJob):
            return history, end
    raise AssertionError("it never ends")


@pytest.mark.parametrize(("failure", "alone"), [(BUSY, 76), (BACKEND, 70)])
def test_where_nobody_replaces_the_machine_it_is_the_end(failure: Failure, alone: int) -> None:
    _, end = ends(failure, policy())
    assert end.exit_code == alone


@pytest.mark.parametrize("failure", [BUSY, BACKEND])
def test_where_somebody_does_the_next_machine_gets_the_job_and_all_its_restarts(
    failure: Failure,
) -> None:
    history, end = ends(failure, replace(policy(), replaceable=True))
    assert end.exit_code is ExitCode.NO_CAPACITY
    assert f"{failure.cause}, again and again on this machine: another one" in end.reason
    attempts = history.state.attempt
    history.starts()
    for _ in range(policy().phases[0].max_num_restarts):
        history.fails(replace(RETRY, cause="its own"))
    assert history.state.exit_code is None
    assert history.state.attempt == attempts + 4
    assert history.fails(RETRY)[-1].exit_code is ExitCode.BUDGET_SPENT  # type: ignore[union-attr]


def test_what_the_program_does_itself_ends_it_there_too() -> None:
    _, end = ends(RETRY, replace(policy(), replaceable=True))
    assert end.exit_code is ExitCode.BUDGET_SPENT


def test_what_bounds_all_restarts_is_not_refilled_by_another_machine() -> None:
    one = PhasePolicy("only", 2, 2, Success(step=100), max_total_restarts=2)
    _, end = ends(BUSY, replace(policy(one), replaceable=True))
    assert end.exit_code is ExitCode.BUDGET_SPENT


@pytest.mark.parametrize("stage", Stage)
def test_a_hang_speaks_against_the_machine_only_while_it_initialises(stage: Stage) -> None:
    hung = hang_failure(None, stage, 60.0)
    assert (hung.verdict, hung.machine) == (Verdict.RESTART, stage is Stage.INITIALIZING)
