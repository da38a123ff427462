"""`supervise report`: what it writes, prints and complains of."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.core.events import SupervisorStarted
from supervisor.core.exit_codes import ExitCode
from tests.adapters.test_journal import POLICY, STORY, tell
from tests.report.long_job import write_long_job

ATTEMPTS = 75
"""So many that older records are in an archived segment."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("job")
    write_long_job(place, ATTEMPTS)
    assert list((place / "journal").iterdir())
    return place


def test_the_page_is_in_the_working_directory(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == "written: report.html\n"
    assert Path("report.html").read_text().startswith("<!doctype html>")
    assert main(["report", str(folder), "-o", "other.html"]) == 0
    assert Path("other.html").exists()


def test_json_has_every_attempt_also_those_of_archived_records(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--json", str(folder)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["number"] for each in told["attempts"]] == list(range(1, ATTEMPTS + 1))
    assert len(told["failures"]) == ATTEMPTS - 1
    assert told["missing"] == ""
    assert told["head"]["goodput"].startswith("goodput ")
    assert told["losses"][0]["points"]


def test_text_is_lines_without_control_characters(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--text", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    titles = [line for line in lines if line.isupper() and line.isascii() and line[0] != " "]
    assert titles == [
        *("TIMELINE", "ATTEMPTS", "FAILURES", "RECOVERIES", "GOODPUT BY CAUSE", "LOSS", "RUNGS"),
        "CHECKPOINTS",
    ]
    assert any("decided: attempt 75 starts" in line for line in lines)


def test_a_lost_segment_is_told_and_the_rest_is_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "journal.jsonl").write_bytes((folder / "journal.jsonl").read_bytes())
    assert main(["report", "--json", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "is missing: its records cannot be read" in told["missing"]
    assert told["attempts"][-1]["number"] == ATTEMPTS
    assert told["no_losses"] == f"there is no metrics.jsonl in {tmp_path}"


def test_what_is_no_file_has_no_losses(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes((folder / "journal.jsonl").read_bytes())
    (tmp_path / "metrics.jsonl").symlink_to("/dev/zero")
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 0
    assert "metrics.jsonl cannot be read" in (tmp_path / "page.html").read_text()


def test_a_page_that_cannot_be_written_is_told(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "no" / "page.html"
    assert main(["report", str(folder), "-o", str(file)]) == ExitCode.CANNOT_WRITE
    assert f"{file} cannot be written (No such file or directory)" in capfd.readouterr().err


def test_a_place_without_a_job_is_wrong_usage(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == ExitCode.USAGE
    assert "holds no job" in capfd.readouterr().err


@pytest.mark.parametrize("form", ["--text", "page"])
@pytest.mark.parametrize("is_ours", [True, False])
def test_the_replay_of_a_spike_names_the_phase_and_can_be_pasted(
    form: str, is_ours: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, page = tmp_path / "my job", tmp_path / "page.html"
    place.mkdir()
    (one,) = POLICY.phases
    one = replace(one, success=replace(one.success, committed=is_ours))
    policy = replace(POLICY, phases=(replace(one, name="pre train"), replace(one, name="tune")))
    tell(place, SupervisorStarted(0.0, "job", policy, None), *STORY[1:3], policy=policy)
    losses = [2.0] * 40 + [9.0]
    records = ({"attempt": 1, "step": step, "loss": each} for step, each in enumerate(losses))
    (place / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    how = ["--text"] if form == "--text" else ["-o", str(page)]
    assert main(["report", str(place), *how]) == 0
    told = capsys.readouterr().out if form == "--text" else unescape(page.read_text())
    assert "the loss of step 40 stands out" in told
    replay = f"supervise replay '{place}' --phase 'pre train' --step N"
    assert (replay in told) == ("ook into one" in told) == is_ours
