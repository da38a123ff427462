"""Real programs that print steps and report none: they are shown, and decide nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result

Supervise = Callable[..., Result]

PROGRAM = """
import os, signal, sys, time
from pathlib import Path

model_dir, attempt = Path(sys.argv[1]), sys.argv[2]

def told(text):
    return text in "".join(path.read_text() for path in model_dir.glob("*_restartable/run.log"))

def say(step):
    print(f"step {step} loss {1 / step:.3f}" + " " * PADDING)
    time.sleep(0.02)
"""
TRAINS = """
step = 0
while not told("steps are read from lines such as 'step "):
    step += 1
    say(step)
"""
DIES_ONCE = (
    """
if attempt == "1":
"""
    + TRAINS.replace("\n", "\n    ")
    + """
    checkpoint = model_dir / "checkpoints" / "3"
    checkpoint.mkdir(parents=True)
    (checkpoint / "commit_success.txt").touch()
    while not told("checkpoint of step 3 is committed"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
say(4)
while not told("resumed at step"):
    time.sleep(0.01)
say(5)
"""
)
QUIET = TRAINS + "time.sleep(1.0)\n"
REPORTS = """
from supervisor.protocol.messages import StepMessage, encode
descriptor = int(os.environ["SUPERVISE_PROGRESS_FD"])
for step in range(1, 80):
    os.write(descriptor, encode(StepMessage(step)))
    say(1000 + step)
"""


def config(
    tmp_path: Path, model_dir: Path, body: str, *, padding: int = 0, restarts: int = 0, **more: Any
) -> dict[str, Any]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("PADDING", str(padding)) + body)
    argv = [sys.executable, str(program), "{model_dir}", "{attempt}"]
    restart: dict[str, Any] = {"max_num_restarts": restarts, "standby": "off"}
    restart |= more.pop("autorestart", {})
    return {
        "trainer": {
            "init": {"model_dir": str(model_dir), "autorestart": restart},
            "command": {"argv": argv, **more},
        }
    }


@pytest.mark.parametrize(
    ("padding", "more"),
    [
        pytest.param(0, {}, id="with the bootstrap"),
        pytest.param(0, {"bootstrap": False}, id="unbuffered"),
        pytest.param(
            1000, {"bootstrap": False, "env": {"PYTHONUNBUFFERED": ""}}, id="block-buffered"
        ),
    ],
)
def test_steps_are_recognised_also_in_lumps(
    supervise: Supervise, tmp_path: Path, model_dir: Path, padding: int, more: dict[str, Any]
) -> None:
    result = supervise(config(tmp_path, model_dir, TRAINS, padding=padding, **more))
    assert result.code == 0, result.log
    told = result.event("steps-recognised")
    assert told["phase"] == "phase1"
    assert told["detail"].startswith("step ")
    (attempt,) = result.summary["attempts"]
    assert attempt["ending_step"] >= 5
    assert (attempt["starting_step"], attempt["steps_progressed"]) == (0, attempt["ending_step"])


def test_the_second_attempt_begins_at_a_lower_step(
    supervise: Supervise, tmp_path: Path, model_dir: Path
) -> None:
    result = supervise(config(tmp_path, model_dir, DIES_ONCE, restarts=1))
    assert result.code == 0, result.log
    assert len(result.events("steps-recognised")) == 1
    assert not result.has_event("steps-dropped")
    assert result.has_event("recovered", attempt=2, step=4)
    first, second = result.summary["attempts"]
    assert first["ending_step"] > 4
    assert (second["starting_step"], second["ending_step"]) == (3, 5)


def test_a_recognised_step_is_no_success(
    supervise: Supervise, tmp_path: Path, model_dir: Path
) -> None:
    result = supervise(config(tmp_path, model_dir, TRAINS, success={"step": 3}))
    assert result.code == 76, result.log
    (attempt,) = result.summary["attempts"]
    assert attempt["ending_step"] >= 5
    assert attempt["failure"]["rule"] == "no-step-told"


def test_silence_after_recognised_steps_is_no_hang(
    supervise: Supervise, tmp_path: Path, model_dir: Path
) -> None:
    limits = {"deadlines": {"TRAINING": 0.1}}
    result = supervise(config(tmp_path, model_dir, QUIET, autorestart=limits))
    assert result.code == 0, result.log
    assert result.attempts == 1


def test_what_is_reported_comes_first(
    supervise: Supervise, tmp_path: Path, model_dir: Path
) -> None:
    result = supervise(config(tmp_path, model_dir, REPORTS))
    assert result.code == 0, result.log
    assert not result.has_event("steps-recognised")
    assert result.summary["attempts"][0]["ending_step"] == 79
