"""Snapshots in memory under a real supervisor: when the next attempt gets them, and when not."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_training import config
from tests.running import Running, Start, eventually
from tests.training.harness import assert_same_bits, final_state, newest_snapshot
from trainer.checkpoint import newest_step
from trainer.train_state import TrainState


def trainer_of(running: Running, attempt: int) -> int:
    """The pid of an attempt's trainer."""
    (pid,) = running.wait_for_event("workers-started", attempt=attempt)["pids"]
    return int(pid)


def _points_at(descriptor: Path) -> str:
    """What a file descriptor of another process is of; empty if it has been closed meanwhile."""
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return ""


def newest_in_memory(pid: int) -> int | None:
    """The step of the newest snapshot in the memory that a trainer was given."""
    descriptors = Path(f"/proc/{pid}/fd").iterdir()
    found = next(one for one in descriptors if _points_at(one).startswith("/memfd:snapshots"))
    memory = os.open(found, os.O_RDONLY)
    try:
        return newest_snapshot(memory)
    finally:
        os.close(memory)


@pytest.mark.slow
def test_used_after_a_kill_once_and_not_after_an_exception(
    start: Start, tmp_path: Path, cache: dict[str, str], undisturbed: TrainState
) -> None:
    """Attempt 2, a standby, has the snapshot of step 12, attempt 3 not, because 2 got no further
    than 1; attempt 4 has the one of 3; attempt 5 has none, because 4 failed of an exception."""
    hangs: list[dict[str, Any]] = [{"step": step, "hang": True} for step in (13, 14, 15)]
    fails = {"step": 16, "exception": "OSError", "message": "an odd batch"}
    job = config(tmp_path / "run", faults=[*hangs, fails])
    init = job["trainer"]["init"]
    init["checkpoint"]["snapshot"] = {"every": 6}
    init["autorestart"] |= {"max_num_restarts": 4, "standby": "imports"}
    running = start(job, env=cache)
    for attempt in (1, 2, 3):
        pid = trainer_of(running, attempt)
        running.wait_for(f"DRILL phase1-{attempt - 1} fires")
        assert eventually(lambda pid=pid: newest_in_memory(pid) == 12, 60.0)  # type: ignore[misc]
        assert eventually(lambda: newest_step(running.model_dir / "checkpoints") == 10)
        if attempt == 1:
            running.wait_for_event("standby-ready", kind="imports")
        os.kill(pid, signal.SIGKILL)
    result = running.result()

    assert result.code == 0, result.log
    assert result.has_event("standby-used", kind="imports")
    records = result.summary["attempts"]
    assert [(one["starting_step"], one["from_snapshot"]) for one in records[:4]] == [
        (0, False),
        (12, True),
        (10, False),
        (12, True),
    ]
    assert not records[4]["from_snapshot"]
    restored = [told["text"] for told in result.events("snapshot-restored", step=12)]
    assert len(restored) == 2
    assert all(each.endswith("(the newest checkpoint is of step 10)") for each in restored)
    assert 1e5 < result.event("snapshots-size")["bytes"] < 1e7
    assert [told["reason"] for told in result.events("snapshots-dropped")] == [
        "the last attempt had them and failed before a new checkpoint",
        "after this failure (an exception) the state in memory is not trusted",
    ]
    used = {"restarts": 3, "max_num_restarts": 4}
    assert result.has_event("budget-used", **used), "that was no progress"
    assert_same_bits(final_state(job, tmp_path / "run"), undisturbed)
