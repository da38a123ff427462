"""What there is much of does not keep the supervisor from its signals: each costs a turn of its
main loop little."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.running import Start, command_config

BEGIN = """
import json, os, signal, sys, time

def ready():
    os.write(1, b"it is many\\n")

def fork(child):
    if (pid := os.fork()) == 0:
        child()
        os._exit(0)
    return pid
"""
PROGRESS_FLOOD = """
pipe = int(os.environ["SUPERVISE_PROGRESS_FD"])
os.set_blocking(pipe, True)
notice = {"v": 1, "kind": "notice", "text": "not again"}
for number in range(1 << 62):
    step = {"v": 1, "kind": "step", "step": number}
    os.write(pipe, b"".join(json.dumps(each).encode() + b"\\n" for each in (step, notice)))
    if number == 10_000:
        ready()
"""
OUTPUT_FLOOD = """
for number in range(1 << 62):
    os.write(1, b"completed step: %d\\n" % number)
    if number == 10_000:
        ready()
"""
ENDS_OF_CHILDREN = """
def orphan():
    os.setsid()
    fork(lambda: None)

for number in range(1 << 62):
    for pid in [fork(orphan) for _ in range(20)]:
        os.waitpid(pid, 0)
    if number == 20:
        ready()
"""
STOPPED_CHILD = """
child = fork(signal.pause)
os.kill(child, signal.SIGSTOP)
os.waitpid(child, os.WUNTRACED)
ready()
signal.pause()
"""
PROCESSES = """
for _ in range(2_000):
    fork(signal.pause)
ready()
signal.pause()
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(PROGRESS_FLOOD, id="progress"),
        pytest.param(OUTPUT_FLOOD, id="output"),
        pytest.param(ENDS_OF_CHILDREN, id="ends of children"),
        pytest.param(STOPPED_CHILD, id="stopped child"),
        pytest.param(PROCESSES, id="processes", marks=pytest.mark.slow),
    ],
)
def test_signals_are_heard_beside_it(start: Start, model_dir: Path, program: str) -> None:
    """And nothing of it is left, as `start` sees to."""
    config = command_config(model_dir, progress={"pattern": r"completed step: (\d+)"})
    config["trainer"]["command"]["argv"] = [sys.executable, "-S", "-c", BEGIN + program]
    running = start(config)
    running.wait_for("it is many")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert "asked to stop by SIGTERM" in result.log
    assert "does not end although it is killed" not in result.log
