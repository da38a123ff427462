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
    ("error", "told", "reason", "tracebacks"),
    [
        ("ValueError('a bug')", "observer-failed", "ValueError('a bug')", 1),
        ("RuntimeError('no thread')", "limits-not-applied", "no thread", 0),
    ],
    ids=["a bug", "may pass"],
)
def test_a_job_goes_on_where_a_timer_of_an_observer_fails(
    error: str,
    told: str,
    reason: str,
    tracebacks: int,
    start: Start,
    tmp_path: Path,
    model_dir: Path,
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(BROKEN.replace("ERROR", error))
    config = command_config(model_dir, "save-on-sigterm", success={"step": 500})
    running = start(config, env={"PYTHONPATH": str(modules)})
    running.wait_for_event(told, reason=reason)
    running.wait_for("ready to save")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.err
    assert result.event(told)
    assert result.has_event("checkpoint-committed", step=300)
    assert result.err.count("Traceback") == tracebacks, "only a bug of ours has one"
