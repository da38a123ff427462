"""Files that somebody else wrote: whatever lies in model_dir, the job goes on or says in one
line what to do, SIGTERM ends it, and its memory stays bounded."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from tests.running import Result, Running, Start, command_config

Supervise = Callable[..., Result]

DEEP = b"[" * 200_000
_BOUND = 120 << 20
"""Bytes that a supervisor may have taken at its peak; it takes half of it as a rule."""


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def deep(path: Path) -> None:
    path.write_bytes(DEEP)


def digits(path: Path) -> None:
    path.write_bytes(b'{"v": 1, "epoch": ' + b"9" * 5000 + b"}")


def plant(place: Path, name: str, kind: Callable[[Path], None]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    kind(place / name)


def peak_memory(running: Running) -> int:
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


# A worker that leaves, in place of its failure record, another thing in each attempt.
HOSTILE_RECORDS = """
import os, signal, sys
from pathlib import Path
attempt, record = int(os.environ["SUPERVISE_ATTEMPT"]), Path(os.environ["SUPERVISE_FAILURE_FILE"])
if attempt == 1:
    os.mkfifo(record)
elif attempt == 2:
    record.symlink_to("/dev/zero")
elif attempt == 3:
    record.touch()
    os.truncate(record, 1 << 40)
elif attempt == 4:
    record.write_bytes(b"[" * 200_000)
else:
    print("step 9", flush=True)
    signal.pause() if len(sys.argv) > 1 else sys.exit(0)
sys.exit(6)
"""


def hostile_records(model_dir: Path, *more: str, **command: Any) -> dict[str, Any]:
    config = command_config(model_dir, restart={"max_num_restarts": 4}, **command)
    config["trainer"]["command"]["argv"] = [sys.executable, "-c", HOSTILE_RECORDS, *more]
    config["trainer"]["init"]["autorestart"]["backoff"] = {"first": 0.01, "max": 0.01}
    return config


def test_hostile_files_in_model_dir_end_no_job_and_sigterm_does(
    start: Start, model_dir: Path
) -> None:
    requests = model_dir / "requests"
    for number, kind in enumerate((fifo, zeros, deep, digits)):
        plant(requests, f"{number}.clear-quarantine.json", kind)
        plant(model_dir / "checkpoints" / str(7 + number), "_CHECKPOINT_METADATA", kind)
    plant(model_dir / "checkpoints" / "20", "commit_success.txt", fifo)
    (model_dir / ".supervisor.lock").touch()  # a supervisor has run there
    deep(model_dir / ".supervisor.json")
    deep(model_dir / "lease.json")
    running = start(hostile_records(model_dir, "wait", progress={"pattern": r"step (\d+)"}))
    running.wait_for_event("attempt-started", attempt=5)
    running.wait_for("step 9")
    assert peak_memory(running) < _BOUND
    asked = time.monotonic()
    running.signal(signal.SIGTERM)
    result = running.result()
    assert time.monotonic() - asked < 10
    assert result.code == 75, result.err
    assert "Traceback" not in result.err + result.out
    unheard = [told["reason"] for told in result.events("request-unheard")]
    for number in range(4):
        file = rf"/{number}\.clear-quarantine\.json (is|has) "
        told = [why for why in unheard if re.search(file, why)]
        assert len(told) == 1, "told once, also if it is looked at again"
        assert (requests / f"{number}.clear-quarantine.json").is_symlink() == (number == 1)
    for number, why in ((7, "is a FIFO"), (8, "is a link"), (20, "is a FIFO")):
        refused = [told["reason"] for told in result.events("checkpoint-refused")]
        assert any(re.search(rf"/checkpoints/{number}/\S+ {why}", each) for each in refused)
    for why in ("is a FIFO", "is a link", "has 1099511627776 bytes", "nested deeper than"):
        unusable = result.events("evidence-unusable", rank=0)
        assert any(why in told["reason"] for told in unusable), why
    assert result.summary["highest_committed_step"] is None


def test_such_a_job_runs_to_its_end(supervise: Supervise, model_dir: Path) -> None:
    for number, kind in enumerate((fifo, zeros)):
        plant(model_dir / "checkpoints" / str(7 + number), "_CHECKPOINT_METADATA", kind)
    result = supervise(hostile_records(model_dir))
    assert (result.code, result.attempts) == (0, 5), result.err
    refused = [told["reason"] for told in result.events("checkpoint-refused")]
    assert len(refused) == len(set(refused)) == 2, "each is told once, not once for each attempt"


@pytest.mark.parametrize("kind", [fifo, zeros, deep, digits])
def test_a_journal_that_is_none_is_told_in_one_line(
    supervise: Supervise, model_dir: Path, kind: Callable[[Path], None]
) -> None:
    model_dir.mkdir()
    kind(model_dir / "journal.jsonl")
    if kind in (deep, digits):
        with (model_dir / "journal.jsonl").open("ab") as file:
            file.write(b"\n")
    result = supervise(command_config(model_dir))
    assert result.code == 78, "it is not started again by itself"
    (line,) = result.err.splitlines()
    assert re.search(r"journal\.jsonl.* (is|has) .*move it away to begin a new journal", line)
    assert not result.has_event("attempt-started")
    assert main(["status", str(model_dir)]) == 78


def test_a_file_that_becomes_hostile_while_the_job_runs(start: Start, model_dir: Path) -> None:
    running = start(command_config(model_dir, "wait", "--at", "1"))
    running.wait_for("waiting")
    for number, kind in enumerate((fifo, zeros, deep)):
        plant(model_dir / "checkpoints" / str(7 + number), "_CHECKPOINT_METADATA", kind)
        plant(model_dir / "requests", f"{number}.clear-quarantine.json", kind)
    running.wait_for_event("checkpoint-refused")
    running.wait_for_event("request-unheard")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert "Traceback" not in result.err


@pytest.fixture
def hang() -> Iterator[Callable[[Path], None]]:
    """Makes every access to a directory hang: a FUSE whose daemon never says a word."""
    libc, mounted = ctypes.CDLL(None, use_errno=True), list[tuple[Path, int]]()

    def make(place: Path) -> None:
        try:
            daemon = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            pytest.skip(f"/dev/fuse cannot be opened: {error}")
        options = f"fd={daemon},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"hang", bytes(place), b"fuse", 0, options):
            os.close(daemon)
            pytest.skip(f"a FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
        mounted.append((place, daemon))

    yield make
    for place, daemon in mounted:
        libc.umount2(bytes(place), 2)
        os.close(daemon)


def test_checkpoints_on_a_file_system_that_hangs_make_nothing_deaf(
    start: Start, model_dir: Path, hang: Callable[[Path], None]
) -> None:
    checkpoints = model_dir / "checkpoints"
    checkpoints.mkdir(parents=True)
    running = start(command_config(model_dir, "wait", "--at", "1"))
    running.wait_for("waiting")
    hang(checkpoints)
    running.listen(1.5)  # by now the watcher has looked, and is stuck
    asked = time.monotonic()
    running.signal(signal.SIGTERM)
    result = running.result()
    took = time.monotonic() - asked
    assert result.code == 75, result.err
    assert took < 15
    told = result.event("place-unreadable", place=str(checkpoints))
    assert told["reason"].startswith("no answer within 5 s")


@pytest.mark.slow
def test_a_model_dir_on_a_file_system_that_hangs_does_not_hold_up_the_end(
    start: Start, model_dir: Path, hang: Callable[[Path], None]
) -> None:
    restart = {"grace_period": 0.5}
    running = start(command_config(model_dir, "save-on-sigterm", "--at", "1", restart=restart))
    running.wait_for("ready to save")
    hang(model_dir)
    asked = time.monotonic()
    running.signal(signal.SIGTERM)
    _, err = running.process.communicate(timeout=60)
    assert running.process.returncode == 75
    assert b"the main loop hangs in " in err
    assert b"run the same command again to resume" in err
    assert time.monotonic() - asked < 30
