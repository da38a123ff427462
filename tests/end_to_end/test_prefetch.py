"""What is compiled ahead for the next rung is what the restart on that rung loads."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from supervisor.protocol import simulated
from tests.running import UNOPTIMISED, Start

from .test_training import config


@pytest.mark.slow
def test_a_restart_on_a_smaller_rung_finds_its_steps_compiled(start: Start, tmp_path: Path) -> None:
    stopped = [{"step": 8, "signal": "SIGSTOP"}]  # what is prefetched need not wait for the CPU
    job = config(tmp_path / "run", 4, stopped, max_steps=100_000)
    job["trainer"]["init"]["autorestart"] |= {
        "standby": "imports",
        "prefetch": True,
        "ladder": [4, 2],
        "deadlines": {"TRAINING": "10m"},
    }
    running = start(job, env={"XLA_FLAGS": UNOPTIMISED})
    running.wait_for_event("prefetch-done", 300.0, num_devices=2)  # it yields to all others
    (ready, began) = running.events("standby-ready") + running.events("prefetch-began")
    assert ready["time"] <= began["time"], "one at a time"

    simulated.mark_lost(running.model_dir / simulated.FILE, "3")
    (worker,) = running.wait_for_event("workers-started")["pids"]
    os.kill(worker, signal.SIGCONT)
    recovery = running.wait_for_event("recovered", attempt=2)
    assert "imports" not in recovery["parts"]
    assert running.has_event("rung-changed", before=4, num_devices=2)
    assert running.has_event("standby-used", kind="imports")
    assert running.has_event("program-loaded", attempt=2, program="train step")
    running.wait_for_event("program-loaded", attempt=2, program="evaluation step")
    assert not running.has_event("program-compiled", attempt=2)
    running.signal(signal.SIGTERM)
    assert running.result().code == 75
