"""Two trainers of one model: they are drained, killed and resumed as one, and end with the same
bits."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

from supervisor.protocol.committed import committed_steps
from tests.running import Start, eventually
from tests.training.harness import assert_same_bits
from trainer.integrity import MANIFEST

from .test_training import config, final_state

STEPS = 150
STOPPED = 138


def two_workers(model_dir: Path, *faults: dict[str, Any]) -> dict[str, Any]:
    job = config(model_dir, 4, list(faults), max_steps=STEPS, fsdp=2)
    job["trainer"]["init"] |= {"workers": 2, "checkpoint": {"every": 50, "keep": 9}}
    return job


def test_one_of_two_is_killed_and_they_end_with_the_same_bits(
    start: Start, model_dir: Path, tmp_path: Path, cache: dict[str, str]
) -> None:
    whole = two_workers(tmp_path / "whole")
    assert start(whole, env=cache).result(120).code == 0

    struck = two_workers(model_dir, {"step": STOPPED, "signal": "SIGSTOP", "rank": 1})
    init = struck["trainer"]["init"]
    init["autorestart"]["standby"] = "imports"
    init["checkpoint"]["snapshot"] = {"every": 20}
    running = start(struck, env=cache)
    running.wait_for("step 20 ")
    running.signal(signal.SIGTERM)
    drained = running.result()
    assert drained.code == 75, drained.log
    saved = drained.summary["highest_committed_step"]
    assert saved >= 20
    for rank in (0, 1):
        assert f"rank {rank} ended: killed by SIGTERM" in drained.log

    running = start(struck, env=cache)
    running.wait_for(f"restored the state of step {saved}")
    (log,) = model_dir.glob("*_restartable/run.log")
    assert eventually(lambda: log.read_text().count("a standby is ready (imports)") == 2, 60)
    pid = int(re.findall(r"running as pid \d+, (\d+)", log.read_text())[-1])
    assert eventually(lambda: "T (stopped)" in Path(f"/proc/{pid}/status").read_text(), 60)
    os.kill(pid, signal.SIGKILL)
    result = running.result(120)
    assert result.code == 0, result.log
    assert "rank 1 ended: killed by SIGKILL" in result.log
    assert "standbys (imports) take over as 2 of 2 workers" in result.log
    assert "resumed from the snapshot of step 120 in memory" in result.log
    assert "no manifest" not in result.log
    for step, path in committed_steps(model_dir / "checkpoints"):
        assert (path / MANIFEST).exists(), step
    assert_same_bits(
        final_state(struck, model_dir, STEPS), final_state(whole, tmp_path / "whole", STEPS)
    )
