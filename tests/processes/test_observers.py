"""An observer that fails costs the job nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.running import Start, command_config

BROKEN = """
import threading

start = threading.Thread.start

def start_some(thread):
    if thread.name == "bounds":
        raise ERROR
    start(thread)

threading.Thread.start = start_some
"""
"""What the timer of an observer does fails, 5 s after the start."""


@pytest.mark.parametrize(
    ("error", "told", "tracebacks"),
    [
        ("ValueError('a bug')", "Bounds failed (ValueError('a bug')): it is off", 1),
        ("RuntimeError('no thread')", "limits of model_dir are not applied now (no thread)", 0),
    ],
    ids=["a bug", "may pass"],
)
def test_a_job_goes_on_where_a_timer_of_an_observer_fails(
    error: str, told: str, tracebacks: int, start: Start, tmp_path: Path, model_dir: Path
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(BROKEN.replace("ERROR", error))
    config = command_config(model_dir, "save-on-sigterm", success={"step": 500})
    running = start(config, env={"PYTHONPATH": str(modules)})
    running.wait_for(told)
    running.wait_for("ready to save")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.err
    assert result.log.count(told) == 1
    assert result.told("checkpoint-committed", step=300)
    assert result.err.count("Traceback") == tracebacks, "only a bug of ours has one"
