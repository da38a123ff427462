"""A standby that is ready, with the state in memory: the way from a death to the next step."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.running import Start, eventually
from tests.training.harness import assert_same_bits, final_state
from trainer.train_state import TrainState

from .test_snapshots import newest_in_memory
from .test_training import config


def test_a_ready_standby_goes_on_from_memory_with_the_same_bits(
    start: Start, model_dir: Path, cache: dict[str, str], undisturbed: TrainState
) -> None:
    struck = config(model_dir, faults=[{"step": 16, "hang": True}])  # time for the standby
    struck["trainer"]["init"]["autorestart"]["standby"] = "ready"
    struck["trainer"]["init"]["checkpoint"] = {"every": 100, "keep": 2, "snapshot": {"every": 5}}
    running = start(struck, env=cache)
    standby = running.wait_for_event("standby-ready", 180, kind="ready")["pid"]
    (worker,) = running.wait_for_event("workers-started")["pids"]
    assert eventually(lambda: newest_in_memory(worker) == 15)
    os.kill(worker, signal.SIGKILL)
    result = running.result()
    assert result.code == 0, result.log
    assert result.has_event("standby-used", kind="ready")
    assert result.has_event("workers-started", attempt=2, pids=[standby], standby=True)
    assert result.has_event("snapshot-restored", attempt=2, step=15)
    recovery = result.summary["attempts"][1]["recovery"]
    assert "imports" not in recovery["parts"]
    assert recovery["lost_steps"] <= 1
    assert_same_bits(final_state(struck, model_dir), undisturbed)
