"""A program that was killed while it saved fails on its newest file: run.log names the file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tests.running import Result, command_config

PROGRAM = """
import os, pathlib, signal, sys, time
import numpy as np

folder = pathlib.Path(sys.argv[1], "checkpoints")
folder.mkdir(exist_ok=True)
found = sorted(folder.glob("weights_*.npz"), key=lambda path: int(path.stem[8:]))
if found:
    np.load(found[-1])
for step in (10, 20):
    np.savez(folder / f"weights_{step}.npz", np.ones(9))
    print("step", step, flush=True)
(folder / "weights_30.npz").write_bytes(b"PK")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_file_that_a_program_fails_on_is_named(
    supervise: Callable[..., Result], model_dir: Path, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    config = command_config(model_dir)
    config["trainer"]["command"] = [sys.executable, str(program), "{model_dir}"]
    result = supervise(config)
    assert result.code in (70, 76)
    told = result.events("checkpoint-incomplete")
    assert told, "after each attempt"
    assert {each["place"] for each in told} == {str(model_dir / "checkpoints" / "weights_30.npz")}
    assert "weights_30.npz does not count, because it is not complete" in result.out
    assert "move it aside" in result.out
