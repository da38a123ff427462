"""A program whose steps come in lumps, as from a buffer: what is told of them is true."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.running import Result

Supervise = Callable[..., Result]

PROGRAM = """
import os, signal, sys, time
from pathlib import Path

model_dir, attempt = Path(sys.argv[1]), sys.argv[2]

def lump(first, last):
    os.write(1, b"".join(b"step %d\\n" % step for step in range(first, last + 1)))

def told(text):
    while text not in "".join(path.read_text() for path in model_dir.glob("*_restartable/run.log")):
        time.sleep(0.01)

if attempt == "1":
    lump(1, 45)
    checkpoint = model_dir / "checkpoints" / "30"
    checkpoint.mkdir(parents=True)
    (checkpoint / "commit_success.txt").touch()
    told("checkpoint of step 30 is committed")
    os.kill(os.getpid(), signal.SIGKILL)
lump(31, 99)
told("resumed at step")
"""


def test_the_restart_point_is_that_of_the_program(
    supervise: Supervise, tmp_path: Path, model_dir: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    argv = [sys.executable, str(program), "{model_dir}", "{attempt}"]
    restart: dict[str, Any] = {"max_num_restarts": 1, "standby": "off"}
    config = {
        "trainer": {
            "init": {"model_dir": str(model_dir), "autorestart": restart},
            "command": {"argv": argv, "progress": {"pattern": r"step (\d+)"}},
        }
    }
    result = supervise(config)
    assert result.code == 0, result.log
    assert result.has_event("recovered", attempt=2, step=31)
    first, second = result.summary["attempts"]
    assert (first["starting_step"], first["steps_progressed"]) == (0, 45)
    assert (second["starting_step"], second["steps_progressed"]) == (30, 69)


def test_a_pattern_that_matches_nothing_is_told(supervise: Supervise, model_dir: Path) -> None:
    config = {
        "trainer": {
            "init": {"model_dir": str(model_dir), "autorestart": {"max_num_restarts": 0}},
            "command": {"argv": ["echo", "Iteration 5"], "progress": {"pattern": r"step (\d+)"}},
        }
    }
    result = supervise(config)
    assert result.code == 0
    assert result.event("pattern-unmatched", level="warning")["detail"] == r"step (\d+)"
