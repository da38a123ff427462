"""An observer that fails costs the job nothing."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.running import Start, command_config

NO_THREAD = """
import threading

start, refused = threading.Thread.start, {"bounds"}

def start_some(thread):
    if thread.name in refused:
        refused.add("outlet")  # standard error needs one as well
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = start_some
"""
"""As where the container's pids.max is reached while an observer's timer is due."""


def test_a_job_goes_on_where_a_timer_of_an_observer_fails(
    start: Start, tmp_path: Path, model_dir: Path
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(NO_THREAD)
    config = command_config(model_dir, "save-on-sigterm", success={"step": 500})
    running = start(config, env={"PYTHONPATH": str(modules)})
    running.wait_for("Bounds failed (RuntimeError")
    running.wait_for("ready to save")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.err
    assert result.log.count("Bounds failed") == 1
    assert "checkpoint of step 300" in result.log
    assert result.err.count("RuntimeError: can't start new thread") == 1, "it is a bug of ours"
