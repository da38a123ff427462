"""`supervise repair`: a job whose journal was damaged or changed goes on; nothing is deleted."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.adapters.stores.journal import FileJournal, JournalError, replay
from supervisor.adapters.stores.lease import Lease, LeaseTimes
from supervisor.adapters.stores.lease_places import LEASE, LeaseFile
from supervisor.adapters.stores.lock import DirectoryLock
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.cli.main import main
from supervisor.files.segments import ARCHIVE, DAMAGED, JOURNAL
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
    assert f"{len(lines) - ends[0]} lines after it are ignored" in said
    assert kept(model_dir) == damaged
    assert json.loads(journal.read_bytes())["snapshot"]["repaired"] in said

    snapshot = journal.read_bytes()
    again = supervise(config)
    told = json.loads(snapshot)["snapshot"]["repaired"]
    assert again.has_event("journal-repaired", detail=told)
    statuses = {record["attempt"]: record["status"] for record in again.summary["attempts"]}
    assert list(statuses) == list(range(1, max(statuses) + 1)), "those without a record too"
    assert statuses[2] == "UNKNOWN"
    assert not supervise(config).has_event("journal-repaired"), "it is told once"
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
        before = replay(b"".join(lines[:number]), JOURNAL)
        assert main(["repair", str(model_dir)]) == 0
        journal = FileJournal(LocalStorage(model_dir))
        history = journal.read()
        if before.policy is None:
            begins_with_config = number == 0 and b'"config":' in lines[0] and b'"n":' in lines[0]
            before = replay(path.read_bytes(), JOURNAL) if begins_with_config else before
        assert history.state.attempt >= before.state.attempt
        told = replace(history.state.durable(), attempt=before.state.attempt)
        assert told == before.state.durable()
        assert len(list(journal.all_transitions(history))) == len(before.transitions)
        assert kept(model_dir) == data


def test_what_somebody_changed_in_a_record_is_believed_once_it_is_repaired(
    supervise: Supervise, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = command_config(model_dir, argv=[sys.executable, "-c", "raise SystemExit(1)"])
    config["trainer"]["init"]["autorestart"]["max_num_restarts"] = 1
    supervise(config)
    journal = model_dir / JOURNAL
    journal.write_bytes(journal.read_bytes().replace(b'"attempt":2', b'"attempt":7'))
    with pytest.raises(JournalError, match="does not follow from those before it"):
        FileJournal(LocalStorage(model_dir)).peek()
    assert main(["repair", str(model_dir)]) == 0
    assert "What is recorded is believed; where it is wrong, use" in capsys.readouterr().out
    assert FileJournal(LocalStorage(model_dir)).peek().state.attempt == 7


def test_no_job_is_repaired_where_there_is_none_or_a_supervisor_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["repair", str(tmp_path / "nothing")]) == 64
    assert "is no folder" in capfd.readouterr().err
    assert main(["repair", str(tmp_path)]) == 64
    assert list(tmp_path.iterdir()) == [], "no job is there, and nothing is left there"
    shutil.copy(JOURNALS[0], tmp_path / JOURNAL)
    lock = DirectoryLock(tmp_path)
    try:
        assert main(["repair", str(tmp_path)]) == 73
    finally:
        lock.release(LocalStorage(tmp_path))


DAMAGED_JOURNAL = JOURNALS[-1].read_bytes() + b"{\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_who_is_stopped_during_a_repair_says_what_is_true(tmp_path: Path, name: str) -> None:
    """The lock is given back, and the same command again does the rest."""
    (tmp_path / JOURNAL).write_bytes(DAMAGED_JOURNAL)
    program = f"""if True:
        import os, signal, sys

        def before(event, arguments):
            if event == "os.rename" and str(arguments[1]).endswith("/{JOURNAL}"):
                os.kill(os.getpid(), signal.{name})

        sys.addaudithook(before)
        from supervisor.__main__ import main
        sys.exit(main())
    """
    command = [sys.executable, "-c", program, "repair", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (75 if name == "SIGTERM" else 79), done.stderr
    assert "during the repair: it may have written some files" in done.stderr
    assert "the same command again" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    (kept,) = tmp_path.glob(f"{DAMAGED}*")
    assert (tmp_path / JOURNAL).read_bytes() == kept.read_bytes() == DAMAGED_JOURNAL
    assert main(["repair", str(tmp_path)]) == 0
    assert list(tmp_path.glob(f"{DAMAGED}*")) == [kept]
    assert (tmp_path / ARCHIVE).is_dir()
    assert FileJournal(LocalStorage(tmp_path)).read().policy is not None


def test_nothing_is_repaired_where_a_supervisor_of_another_host_renews_its_lease(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / JOURNAL).write_bytes(DAMAGED_JOURNAL)
    times = LeaseTimes(duration=30.0, renew=0.1, settle=0.01)
    place = LeaseFile(LocalStorage(tmp_path), times.settle)
    lease = Lease(place, times, "other", on_renewed=lambda seconds: None, on_lost=print, say=print)
    lease.acquire()
    try:
        assert main(["repair", str(tmp_path)]) == 73
    finally:
        lease.release()
    assert "model_dir is owned by" in capfd.readouterr().err
    assert (tmp_path / JOURNAL).read_bytes() == DAMAGED_JOURNAL
    assert main(["repair", str(tmp_path)]) == 0, "it was given back"


def test_it_is_repaired_where_nothing_can_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / JOURNAL).write_bytes(DAMAGED_JOURNAL)

    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert main(["repair", str(tmp_path)]) == 0
    lease = json.loads((tmp_path / LEASE).read_bytes())
    assert lease == {"token": None, "epoch": 1}, "it was taken, and given back"


def test_what_cannot_be_read_or_written_is_74_and_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / JOURNAL).write_bytes(DAMAGED_JOURNAL)
    (tmp_path / ARCHIVE).write_text("mine")
    assert main(["repair", str(tmp_path)]) == 74
    assert f"{tmp_path}: {ARCHIVE} cannot be written: " in capfd.readouterr().err
    assert (tmp_path / JOURNAL).read_bytes() == DAMAGED_JOURNAL
    assert (tmp_path / ARCHIVE).read_text() == "mine"


def test_a_damaged_segment_is_told_and_costs_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / JOURNAL).write_bytes(DAMAGED_JOURNAL)
    assert main(["repair", str(tmp_path)]) == 0
    journal = (tmp_path / JOURNAL).read_bytes()
    (segment,) = (tmp_path / ARCHIVE).iterdir()
    segment.write_bytes(segment.read_bytes() + b"{}\n")
    assert main(["repair", str(tmp_path)]) == 78
    told = capfd.readouterr().err
    assert f"{JOURNAL} is whole, but {ARCHIVE}/{segment.name} is damaged" in told
    assert (tmp_path / JOURNAL).read_bytes() == journal


def test_an_attempt_behind_the_damage_keeps_its_number_without_a_folder(tmp_path: Path) -> None:
    lines = JOURNALS[-2].read_bytes().splitlines(keepends=True)
    (start, *_) = (n for n, line in enumerate(lines) if b'"kind":"StartWorkers"' in line)
    (tmp_path / JOURNAL).write_bytes(b"".join([*lines[:start], b"{\n", *lines[start:]]))
    assert main(["repair", str(tmp_path)]) == 0
    state = FileJournal(LocalStorage(tmp_path)).read().state
    assert state.attempt == replay(b"".join(lines), JOURNAL).state.attempt


def test_a_record_that_is_gone_takes_no_number_with_it(
    supervise: Supervise, model_dir: Path
) -> None:
    """The journal was cut between two lines: nothing but the folders of the attempts shows it."""
    restart = {"max_num_restarts": 2, "backoff": {"first": 0.01}, "repeated_failure_limit": 0}
    program = [sys.executable, "-c", "raise SystemExit(1)"]
    config = command_config(model_dir, restart=restart, argv=program)
    supervise(config)
    lines = (model_dir / JOURNAL).read_bytes().splitlines(keepends=True)
    starts = [n for n, line in enumerate(lines) if b'"kind":"StartWorkers"' in line]
    (model_dir / JOURNAL).write_bytes(b"".join(lines[: starts[1]]))
    again = supervise(config)
    assert again.has_event("attempts-unrecorded", attempt=3)
    assert [record["attempt"] for record in again.summary["attempts"]][:4] == [1, 2, 3, 4]
    assert again.events("workers-started")[0]["attempt"] == 4
