"""`supervise status` and `jobs` show what status.json says, where it is of this moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from supervisor.adapters.stores.lock import DirectoryLock
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.cli.main import main
from supervisor.cli.status import show_status
from supervisor.core.events import (
    CheckpointCommitted,
    PhaseBegun,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.files.live_status import STATUS, LiveProgress, LiveStatus
from supervisor.host.identity import Identity
from supervisor.protocol.messages import Stage
from tests.adapters.test_journal import EXITS, KILLED, STORY, tell

FATAL = replace(
    KILLED, verdict=KILLED.verdict.FATAL, certain=True, grounds="certain: it is wrong by nature"
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A model_dir with a job that runs; this process is its supervisor."""
    tell(tmp_path, *STORY[:3])
    storage, lock = LocalStorage(tmp_path), DirectoryLock(tmp_path)
    lock.claim(storage, datetime.now().astimezone(), "token")
    yield tmp_path
    lock.release(storage)


def write(place: Path, seconds_ago: float = 1.0, **changed: object) -> None:
    """Write status.json as the supervisor of `place` did so many seconds ago."""
    now = datetime.now().astimezone()
    status = LiveStatus(
        job="job",
        status="RUNNING",
        exit_code=None,
        phase="one",
        attempt=1,
        stage=Stage.TRAINING,
        num_devices=None,
        step=None,
        committed_at=now - timedelta(hours=2, seconds=3),
        max_steps=100,
        live=LiveProgress(step=45, loss=0.25, steps_per_second=0.5, eta_seconds=110.0),
        supervisor=Identity.of_this_process().to_json(),
        period=3.0,
        time=now - timedelta(seconds=seconds_ago),
    )
    (place / STATUS).write_bytes(status.model_copy(update=changed).encoded())


def told(place: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_status(place)
    return capsys.readouterr().out.splitlines()


def test_the_step_of_this_moment_is_shown_with_rate_and_time_left(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place)
    lines = told(place, capsys)
    assert lines[2] == "RUNNING: phase 'one', attempt 1, TRAINING, no checkpoint seen yet"
    shown = "progress: step 45 of 100, 0.5 steps/s, about 1 min 50 s left, loss 0.2500"
    assert lines[3] == shown
    main(["status", "--json", str(place)])
    seen = json.loads(capsys.readouterr().out)
    assert (seen["stage"], seen["step"]) == ("TRAINING", 45)
    assert seen["live"].items() >= {"steps_per_second": 0.5, "max_steps": 100}.items()
    main(["jobs", str(place)])
    assert "; step 45 of 100, 0.5 steps/s" in capsys.readouterr().out


def test_the_age_shown_is_that_of_the_step(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveProgress(step=45, step_at=datetime.now().astimezone() - timedelta(hours=2))
    write(place, live=live)
    assert told(place, capsys)[3] == "progress: step 45 of 100 (2 h ago)"
    main(["status", "--json", str(place)])
    seen = json.loads(capsys.readouterr().out)
    assert seen["live"]["step_at"] == live.model_dump(mode="json")["step_at"]
    main(["jobs", str(place)])
    assert "; step 45 of 100 (2 h ago); " in capsys.readouterr().out
    write(place, live=LiveProgress(step=45))
    assert told(place, capsys)[3] == "progress: step 45 of 100"


def test_a_loss_that_is_no_number_is_not_hidden(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place, live=LiveProgress(step=45, loss_not_finite=True))
    assert told(place, capsys)[3] == "progress: step 45 of 100, loss NaN or Inf"
    assert main(["status", "--json", str(place)]) == 0
    assert json.loads(capsys.readouterr().out)["live"]["loss_not_finite"] is True


@pytest.mark.parametrize(
    ("seconds_ago", "changed"),
    [
        (60.0, {}),
        (1.0, {"supervisor": {**Identity.of_this_process().to_json(), "started": 1}}),
        (1.0, {"attempt": 2}),
        (1.0, {"job": "another"}),
    ],
    ids=["old", "of another process", "of another attempt", "of another job"],
)
def test_what_is_not_of_this_moment_is_not_shown_as_live(
    seconds_ago: float,
    changed: dict[str, object],
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(place, seconds_ago, **changed)
    assert not [line for line in told(place, capsys) if line.startswith("progress:")]
    main(["status", "--json", str(place)])
    seen = json.loads(capsys.readouterr().out)
    assert (seen["stage"], seen["step"], seen["live"]) == (None, None, None)


def test_a_rank_that_has_failed_and_lives_is_told(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place)
    (phase,) = (each.directory for each in STORY if isinstance(each, PhaseBegun))
    folder = place / phase / "attempts" / "0001"
    folder.mkdir(parents=True)
    (folder / "rank0.failure.json").touch()
    assert told(place, capsys)[4].startswith("rank 0 has failed, and its process has not ended yet")
    (folder / "rank0.failure.json").unlink()
    assert not any("has not ended yet" in line for line in told(place, capsys))


def test_the_last_step_of_a_killed_supervisor_is_told_with_its_age(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(tmp_path, *STORY[:3])
    write(tmp_path, 7200.0)
    lines = told(tmp_path, capsys)
    assert "supervisor: none runs here; the last supervisor ended before the job" in lines[1]
    assert lines[3] == "last completed step: 45, seen 2 h ago, or later"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"v": 1}', b"\xff" * 100, b"[" * 9999])
def test_a_file_that_is_no_status_is_ignored(
    content: bytes, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / STATUS).write_bytes(content)
    assert told(place, capsys)[2].startswith("RUNNING")


def test_a_commit_has_its_age(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "journal.jsonl").unlink()
    tell(place, *STORY[:3], CheckpointCommitted(4.0, 0, 5))
    assert [
        line
        for line in told(place, capsys)
        if line.startswith("last checkpoint committed: step 5, ")
    ]


def test_earlier_failures_are_told_with_their_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(KILLED, cause="it broke", advice="Mend it.", where="/a/train.py:3 in f")
    tell(
        tmp_path,
        *STORY[:3],
        WorkersObserved(4.1, 1, (7,), EXITS),
        WorkersGone(4.2, 1, other, None, 6, None),
        WorkersStarted(4.3, 2, (8,)),
        WorkersObserved(4.4, 2, (8,), EXITS),
        WorkersGone(4.5, 2, FATAL, None, 6, None),
    )
    log = tmp_path / "20250304_050607_restartable/attempts/0001/rank0.log"
    log.parent.mkdir(parents=True)
    log.touch()
    lines = told(tmp_path, capsys)
    rule = f"(rule {KILLED.rule!r})"
    assert lines[0].startswith(f"FAILED: {FATAL.cause}: {FATAL.root_cause}")
    first = lines.index(
        f"before that, attempt 1: it broke: {other.root_cause}, at /a/train.py:3 in f {rule}"
    )
    assert lines[first + 1 : first + 3] == ["what to do: Mend it.", f"log: {log}"]
    main(["status", "--json", str(tmp_path)])
    failures = json.loads(capsys.readouterr().out)["failures"]
    assert [(each["attempt"], each["verdict"]) for each in failures] == [
        (2, "FATAL"),
        (1, "RESTART"),
    ]
    assert failures[1]["log"] == str(log)


def test_a_folder_of_jobs_is_no_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").mkdir()
    tell(tmp_path / "one", *STORY[:3])
    assert main(["status", str(tmp_path)]) == 64
    assert f"list them with `supervise jobs {tmp_path}`" in capfd.readouterr().err
