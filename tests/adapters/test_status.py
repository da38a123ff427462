"""`supervise status` of a job whose journal somebody else may have written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.cli.job_view import quarantined
from supervisor.cli.main import main
from supervisor.cli.status import show_status
from supervisor.core.events import StopRequested, StopSource, WorkersGone, WorkersObserved
from supervisor.core.policy import PhasePolicy
from supervisor.core.quarantine import Quarantine, QuarantinedUnit
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.success import Success
from tests.adapters.test_journal import EXITS, KILLED, STORY, tell


def test_nothing_in_a_journal_moves_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(tmp_path, *STORY[:2])
    journal = tmp_path / "journal.jsonl"
    hostile = json.dumps("\x1b[2J")
    journal.write_text(journal.read_text().replace('"job":"job"', f'"job":{hostile}'))
    show_status(tmp_path)
    told = capsys.readouterr().out
    assert all(line.isprintable() for line in told.splitlines())
    assert "[2J" in told


@pytest.mark.parametrize(
    ("asked", "failure", "told"),
    [
        (True, replace(KILLED, root_cause="killed by SIGKILL", exit="killed by SIGKILL"), False),
        (True, replace(KILLED, root_cause="OSError: no space left", exit="exit code 1"), True),
        (False, replace(KILLED, root_cause="killed by SIGKILL", exit="killed by SIGKILL"), True),
    ],
)
def test_an_attempt_that_ended_as_it_was_asked_to_is_no_failure(
    asked: bool, failure: Failure, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = (StopRequested(4.0, StopSource.PERSON),) if asked else ()
    observed = WorkersObserved(4.1, 1, (7,), EXITS)
    tell(tmp_path, *STORY[:3], *stop, observed, WorkersGone(4.2, 1, failure, None, 6, 5))
    show_status(tmp_path)
    assert ("last failure" in capsys.readouterr().out) == told


def test_a_success_whose_output_ends_in_a_traceback_stays_doubtful(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = WorkersGone(4.2, 1, None, None, 6, 5, doubt="ValueError: no such shard")
    tell(tmp_path, *STORY[:3], WorkersObserved(4.1, 1, (7,), EXITS), gone)
    show_status(tmp_path)
    told = capsys.readouterr().out
    assert "SUCCEEDED" in told
    assert "but its output ends in a traceback: ValueError: no such shard" in told


def test_a_config_is_no_model_dir(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "trainer.yaml"
    config.touch()
    assert main(["status", str(config)]) == 64
    assert "trainer.yaml is a file: give the job's model_dir" in capfd.readouterr().err


@pytest.mark.parametrize("until", [1e300, float("inf"), float("nan")])
def test_a_time_that_is_none_is_told_as_it_is(until: float) -> None:
    quarantine = Quarantine((QuarantinedUnit("5", "a wrong result", until),))
    (line,) = quarantined(JobState(quarantine=quarantine), PhasePolicy("p", 1, 1, Success()))
    assert f"until {until:g}" in line
