"""A standby that is ready, with the state in memory: the way from a death to the next step."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from tests.running import Start
from tests.training.harness import assert_same_bits, final_state

from .test_training import config

STEPS = 200


def test_a_ready_standby_goes_on_from_memory_with_the_same_bits(
    start: Start, model_dir: Path, tmp_path: Path, cache: dict[str, str]
) -> None:
    whole = config(tmp_path / "whole", 2, max_steps=STEPS)
    assert start(whole, env=cache).result().code == 0

    stopped = [{"step": STEPS - 12, "signal": "SIGSTOP"}]  # time enough for the standby
    struck = config(model_dir, 2, stopped, max_steps=STEPS)
    struck["trainer"]["init"]["autorestart"]["standby"] = "ready"
    struck["trainer"]["init"]["checkpoint"] = {"every": 100, "keep": 2, "snapshot": {"every": 5}}
    running = start(struck, env=cache)
    out = running.wait_for("a standby is ready (ready)", timeout=180)
    worker, standby = (int(re.findall(rf"{text} (\d+)", out)[0]) for text in ("as pid", ", pid"))
    while Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        os.sched_yield()
    os.kill(worker, signal.SIGKILL)
    result = running.result()
    assert result.code == 0, result.log
    assert "the standby (ready) takes over" in result.log
    assert f"[attempt 2] running as pid {standby};" in result.log
    assert re.search(r"\[attempt 2\] resumed from the snapshot of step 1[5-9]\d", result.log)
    recovery = result.summary["attempts"][1]["recovery"]
    assert "imports" not in recovery["parts"]
    assert recovery["lost_steps"] < 50
    assert_same_bits(
        final_state(struck, model_dir, STEPS), final_state(whole, tmp_path / "whole", STEPS)
    )
