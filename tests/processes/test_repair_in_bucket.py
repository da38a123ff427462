"""`supervise repair` of a job in a bucket: as in a folder, and only by who owns the job then."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.stores.fetch import epoch_after, read_growing
from supervisor.adapters.stores.journal import replay
from supervisor.adapters.stores.lease import LeaseTimes
from supervisor.cli.main import main
from supervisor.files.attempts import is_phase_folder
from supervisor.files.segments import ARCHIVE, DAMAGED, JOURNAL, SUFFIX, Segment
from supervisor.history.archive import archived_name
from supervisor.ports import Objects
from supervisor.protocol.location import Uri
from tests.emulators import Emulator
from tests.running import Result, Start, command_config

from .test_lease import leased, supervisor_of


@pytest.fixture
def place(gcs: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Uri:
    for name, value in gcs.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return gcs.root / uuid.uuid4().hex


def job(place: Uri, *program: str, restarts: int = 2) -> dict[str, Any]:
    restart = {"max_num_restarts": restarts, "backoff": {"first": 0.01}}
    restart |= {"repeated_failure_limit": 0}
    return command_config(Path(str(place)), restart=restart, argv=[sys.executable, "-c", *program])


def journal(objects: Objects) -> list[bytes]:
    """The lines of the journal in the bucket."""
    return (read_growing(objects, JOURNAL, pytest.fail) or b"").splitlines(keepends=True)


def test_a_job_in_a_bucket_goes_on_from_what_can_be_followed(
    supervise: Callable[..., Result],
    place: Uri,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, objects = job(place, "raise SystemExit(1)"), bucket(place)
    config["trainer"]["init"]["model_dir"] = str(place)
    assert supervise(config).code == 76
    lines = journal(objects)
    ends = [number for number, line in enumerate(lines) if b'"kind":"WorkersGone"' in line]
    lines[ends[0]] = b"\0" * 40 + b"\n"
    damaged = b"".join(lines)
    broken = Segment(epoch_after(objects), 0, len(damaged))
    objects.write(f"{JOURNAL}{SUFFIX}/{broken.name}", damaged)
    refused = supervise(config)
    assert refused.code == 78, refused.err
    assert f"`supervise repair {place}`" in refused.err

    assert main(["repair", str(place)]) == 0
    said = capsys.readouterr().out
    assert f"line {ends[0] + 1} is damaged" in said
    (kept,) = (name for name in objects.list("").objects if name.startswith(DAMAGED))
    assert objects.read(kept).data == damaged
    first = json.loads(journal(objects)[0])["snapshot"]
    assert first["repaired"] in said
    assert objects.read(first["archived"]).data == b"".join(lines[: ends[0]])
    assert list(objects.list(ARCHIVE).objects) == [first["archived"].removeprefix(f"{ARCHIVE}/")]
    assert main(["repair", str(place)]) == 0
    assert capsys.readouterr().out == "nothing is damaged: nothing was done\n"

    for host in ("state", "another"):  # one that has a copy of the damaged journal, one without
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / host))
        went_on = supervise(config)
        assert went_on.code == 76, went_on.err
    phases = [name for name in objects.list("").folders if name.endswith("_restartable")]
    names = sorted(name for phase in phases for name in objects.list(f"{phase}/attempts").folders)
    assert names[:5] == ["0001", "0002", "0003", "0004", "0005"], "each number once"
    assert len(names) == len(set(names))


def test_a_journal_that_is_gone_is_rebuilt_from_its_segments(
    supervise: Callable[..., Result],
    place: Uri,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It is no new job on any host: neither on one that has a copy nor on another."""
    config, objects = job(place, "raise SystemExit(1)"), bucket(place)
    config["trainer"]["init"]["model_dir"] = str(place)
    assert supervise(config).code == 76
    data = b"".join(journal(objects))
    segment = archived_name(replay(data, JOURNAL), data)
    objects.write(segment, data)
    for name in objects.list(f"{JOURNAL}{SUFFIX}").objects:
        objects.delete(f"{JOURNAL}{SUFFIX}/{name}")
    for host in ("state", "another"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / host))
        refused = supervise(config)
        assert refused.code == 78, refused.err
        assert "journal.jsonl is missing, but journal/ has 1 segment" in refused.err
        assert f"`supervise repair {place}`" in refused.err
    assert main(["status", str(place)]) == 78
    assert f"`supervise repair {place}`" in capfd.readouterr().err

    assert main(["repair", str(place)]) == 0
    assert "its beginning from journal/" in capfd.readouterr().out
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "third"))
    done = supervise(config)
    assert done.code == 76
    assert not done.has_event("summary-incomplete"), "the segment is read in the bucket"
    phases = sorted(name for name in objects.list("").folders if is_phase_folder(name))
    summary = json.loads(objects.read(f"{phases[-1]}/summary.json").data)
    assert summary["attempts"][0]["attempt"] == 4, "after the three of before"


def test_nobody_repairs_where_a_supervisor_runs_or_where_no_job_is(
    start: Start, place: Uri, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["repair", str(place)]) == 64
    assert "holds no job" in capfd.readouterr().err
    config = job(place, "import time; time.sleep(3600)")
    config["trainer"]["init"]["model_dir"] = str(place)
    running = start(config, prefix=leased(LeaseTimes(duration=9.0, renew=0.5)))
    running.wait_for_event("workers-started")
    try:
        assert main(["repair", str(place)]) == 73, capfd.readouterr()
        assert "is owned by supervisor" in capfd.readouterr().err
    finally:
        supervisor_of(running).terminate()
    assert running.result().code == 75
