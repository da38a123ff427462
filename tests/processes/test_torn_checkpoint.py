"""A newest file that is not complete is named: where a program fails on it, and where a save
failed, even if the program goes on after that and succeeds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forked import forked
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
    place = str(model_dir / "checkpoints" / "weights_30.npz")
    failures = [each["failure"] for each in result.summary["attempts"]]
    assert place not in failures[0]["advice"], "it was killed, and has read nothing"
    for failure in failures[1:]:
        assert failure["advice"].startswith(place), "whoever reads the failure alone finds it"
    assert f"what to do: {place}" in forked("status", model_dir).stdout


SWALLOWS = """
import pathlib, sys
import numpy as np

folder = pathlib.Path(sys.argv[1], "checkpoints")
folder.mkdir(exist_ok=True)
for step in (10, 20):
    np.savez(folder / f"weights_{step}.npz", np.ones(9))
    print("step", step, flush=True)
(folder / "weights_30.npz").write_bytes(b"PK")
message = "[Errno 28] No space left on device"
if sys.argv[2:]:
    raise OSError(message)
print("WARNING could not save:", message, flush=True)
"""


def swallowing(model_dir: Path, tmp_path: Path, *arguments: str, **command: Any) -> dict[str, Any]:
    program = tmp_path / "train.py"
    program.write_text(SWALLOWS)
    config = command_config(model_dir, **command)
    config["trainer"]["command"]["argv"] = [
        sys.executable,
        str(program),
        "{model_dir}",
        *arguments,
    ]
    return config


def test_a_success_after_a_save_that_failed_is_told(
    supervise: Callable[..., Result], model_dir: Path, tmp_path: Path
) -> None:
    config = swallowing(model_dir, tmp_path)
    result = supervise(config)
    assert result.code == 0, "exit code 0 stays a success"
    (told,) = result.events("checkpoint-incomplete")
    place = str(model_dir / "checkpoints" / "weights_30.npz")
    assert told["place"] == place
    told_by = f"{place} does not count, because it is not complete"
    assert told_by in forked("status", model_dir).stdout
    assert told_by in forked("explain", model_dir, "1").stdout


def test_a_success_does_not_tell_of_what_was_there_before(
    supervise: Callable[..., Result], model_dir: Path, tmp_path: Path
) -> None:
    folder = model_dir / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "weights_90.npz").write_bytes(b"PK")
    result = supervise(swallowing(model_dir, tmp_path))
    assert result.code == 0
    assert not result.events("checkpoint-incomplete")


@pytest.mark.parametrize(
    ("arguments", "command", "rule"),
    [((), {"success": {"step": 30}}, "early-exit"), (("raise",), {}, "disk-full")],
    ids=("early", "full"),
)
def test_the_advice_names_the_file_that_was_cut(
    supervise: Callable[..., Result],
    model_dir: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    command: dict[str, Any],
    rule: str,
) -> None:
    result = supervise(swallowing(model_dir, tmp_path, *arguments, **command))
    assert result.code == 76
    place = str(model_dir / "checkpoints" / "weights_30.npz")
    for attempt in result.summary["attempts"]:
        assert attempt["failure"]["rule"] == rule
        assert attempt["failure"]["advice"].startswith(place)
    assert f"what to do: {place}" in forked("status", model_dir).stdout
