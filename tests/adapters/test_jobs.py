"""`supervise jobs`: all jobs below a folder, whatever else is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.cli.main import main
from tests.adapters.test_journal import STORY, tell


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two jobs, and what is none."""
    for name in ("b", "deep/er/a"):
        (tmp_path / name).mkdir(parents=True)
        tell(tmp_path / name, *STORY[:4])
    (tmp_path / "b" / "inner").mkdir()
    tell(tmp_path / "b" / "inner", *STORY[:4])  # below a job is no other one
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "journal.jsonl").touch()
    (tmp_path / "link").symlink_to(tmp_path / "b")
    return tmp_path


def test_each_job_has_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", str(folder)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    stands = "phase 'only', attempt 1, last checkpoint: step 5; supervisor: none runs here"
    assert first.startswith(f"{folder}/b: ")
    assert second.startswith(f"{folder}/deep/er/a: ")
    assert first.endswith(stands.split("attempt", 1)[1]), first


def test_programs_read_a_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--json", str(folder)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["model_dir"] for each in told] == [f"{folder}/b", f"{folder}/deep/er/a"]


def test_a_damaged_journal_hides_no_other_job(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "b" / "journal.jsonl").write_text('{"v": 1}\n{"x": 2}\n')
    assert main(["jobs", str(folder)]) == 74
    out, err = capfd.readouterr()
    assert out.startswith(f"{folder}/deep/er/a: ")
    assert f"{folder}/b: " in err


def test_where_no_job_is_it_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", str(tmp_path)]) == 0
    assert capfd.readouterr().out == f"no job is below {tmp_path}\n"
    assert main(["jobs", str(tmp_path / "gone")]) == 64
    assert "gone is no folder" in capfd.readouterr().err
    assert main(["jobs", "n" * 256]) == 64
    assert "File name too long: name the folder" in capfd.readouterr().err
