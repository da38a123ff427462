"""`supervise repair`: a job whose journal was damaged or changed goes on; nothing is deleted."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.adapters.stores.journal import FileJournal, JournalError, follow
from supervisor.adapters.stores.lock import DirectoryLock
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.cli.main import main
from supervisor.files.segments import DAMAGED, JOURNAL
from tests.running import Result, command_config

Supervise = Callable[..., Result]
JOURNALS = sorted((Path(__file__).parents[1] / "adapters" / "journals").glob("format*.jsonl"))


def kept(model_dir: Path) -> bytes:
    """The journal as it was before it was repaired."""
    (path,) = model_dir.glob(f"{DAMAGED}*")
    return path.read_bytes()


def test_a_job_goes_on_from_what_can_be_followed_and_no_attempt_gets_a_number_twice(
    supervise: Supervise, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = [sys.executable, "-c", "raise SystemExit(1)"]
    restart = {"max_num_restarts": 2, "backoff": {"first": 0.01}, "repeated_failure_limit": 0}
    config = command_config(model_dir, restart=restart, argv=program)
    assert supervise(config).code == 76
    journal = model_dir / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if b'"kind":"WorkersGone"' in line]
    lines[ends[0]] = b"\0" * 40 + b"\n"
    damaged = b"".join(lines)
    journal.write_bytes(damaged)

    refused = supervise(config)
    assert refused.code == 78
    assert f"{JOURNAL} line {ends[0] + 1} is damaged" in refused.err
    assert f"`supervise repair {model_dir}`" in refused.err
    assert journal.read_bytes() == damaged

    assert main(["repair", str(model_dir)]) == 0
    said = capsys.readouterr().out
    assert f"line {ends[0] + 1} is damaged" in said
    assert f"{len(lines) - ends[0]} lines behind it count no more" in said
    assert kept(model_dir) == damaged
    assert json.loads(journal.read_bytes())["snapshot"]["repaired"] in said

    snapshot = journal.read_bytes()
    again = supervise(config)
    told = json.loads(snapshot)["snapshot"]["repaired"]
    assert again.told("journal-repaired", detail=told)
    statuses = {record["attempt"]: record["status"] for record in again.summary["attempts"]}
    assert list(statuses) == list(range(1, max(statuses) + 1)), "those without a record too"
    assert statuses[2] == "UNKNOWN"
    assert not supervise(config).told("journal-repaired"), "it is told once"
    names = sorted(path.name for path in model_dir.glob("*/attempts/*"))
    assert names[:4] == ["0001", "0002", "0003", "0004"], "three were there"
    assert main(["repair", str(model_dir)]) == 0
    assert capsys.readouterr().out == "nothing is damaged: nothing was done\n"


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_wherever_a_line_is_damaged_what_was_before_it_counts(path: Path, tmp_path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    for number in range(0, len(lines), max(1, len(lines) // 8)):
        model_dir = tmp_path / f"{number}"
        model_dir.mkdir()
        data = b"".join([*lines[:number], b"{\n", *lines[number + 1 :]])
        (model_dir / JOURNAL).write_bytes(data)
        before = follow(b"".join(lines[:number]), JOURNAL)
        assert main(["repair", str(model_dir)]) == 0
        journal = FileJournal(LocalStorage(model_dir))
        history = journal.read()
        if before.policy is None:
            begins_with_config = number == 0 and b'"config":' in lines[0] and b'"n":' in lines[0]
            before = follow(path.read_bytes(), JOURNAL) if begins_with_config else before
        assert history.state.durable() == before.state.durable()
        assert len(list(journal.everything(history))) == len(before.transitions)
        assert kept(model_dir) == data


def test_what_somebody_changed_in_a_record_is_believed_once_it_is_repaired(
    supervise: Supervise, model_dir: Path
) -> None:
    config = command_config(model_dir, argv=[sys.executable, "-c", "raise SystemExit(1)"])
    config["trainer"]["init"]["autorestart"]["max_num_restarts"] = 1
    supervise(config)
    journal = model_dir / JOURNAL
    journal.write_bytes(journal.read_bytes().replace(b'"attempt":2', b'"attempt":7'))
    with pytest.raises(JournalError, match="does not follow from those before it"):
        FileJournal(LocalStorage(model_dir)).look()
    assert main(["repair", str(model_dir)]) == 0
    assert FileJournal(LocalStorage(model_dir)).look().state.attempt == 7


def test_no_job_is_repaired_in_a_bucket_or_where_a_supervisor_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["repair", "gs://bucket/job"]) == 64
    assert "is in a bucket" in capfd.readouterr().err
    assert main(["repair", str(tmp_path / "nothing")]) == 64
    assert "is no folder" in capfd.readouterr().err
    shutil.copy(JOURNALS[0], tmp_path / JOURNAL)
    lock = DirectoryLock(tmp_path)
    try:
        assert main(["repair", str(tmp_path)]) == 73
    finally:
        lock.release(LocalStorage(tmp_path))
