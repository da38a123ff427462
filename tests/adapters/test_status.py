"""`supervise status` of a job whose journal somebody else may have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.cli import main
from supervisor.core.policy import PhasePolicy, Success
from supervisor.core.quarantine import Quarantine, Quarantined
from supervisor.core.state import JobState
from supervisor.status import _quarantine, show_status
from tests.adapters.test_journal import STORY, tell


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


def test_a_config_is_no_model_dir(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "trainer.yaml"
    config.touch()
    assert main(["status", str(config)]) == 64
    assert "trainer.yaml is a file: give the job's model_dir" in capfd.readouterr().err


@pytest.mark.parametrize("until", [1e300, float("inf"), float("nan")])
def test_a_time_that_is_none_is_told_as_it_is(until: float) -> None:
    quarantine = Quarantine((Quarantined("5", "a wrong result", until),))
    (line,) = _quarantine(JobState(quarantine=quarantine), PhasePolicy("p", 1, 1, Success()))
    assert f"until {until:g}" in line
