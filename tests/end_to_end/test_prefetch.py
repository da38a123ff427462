"""What is compiled ahead for the next rung is what the restart on that rung loads."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from supervisor.protocol import simulated
from tests.running import Start

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
    running = start(job)
    compiled = "Prefetching compile for num_devices=2 completed successfully."
    text = running.wait_for(compiled, timeout=300.0)  # it yields to all others
    assert text.index("a standby is ready") < text.index("Prefetching compile"), "one at a time"

    simulated.lose(running.model_dir / simulated.FILE, "3")
    (worker,) = re.findall(r"running as pid (\d+)", text)
    os.kill(int(worker), signal.SIGCONT)
    text = running.wait_for("resumed at step")
    second = text[text.index("starting attempt 2") :]
    assert "the job shrinks from 4 to 2 devices" in text
    assert "the standby (imports) takes over" in second
    assert "loaded train step from its executable" in second
    recovery = re.search(r"resumed at step \d+ in .*", second)
    assert recovery is not None
    assert "imports" not in recovery[0]
    text = running.wait_for("loaded evaluation step from its executable")
    assert "compiled " not in text[text.index("starting attempt 2") :]
    running.signal(signal.SIGTERM)
    assert running.result().code == 75
