"""A worker that is alive and goes nowhere: found out, its stacks kept, restarted."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked import forked
from tests.running import Result, Start, command_config

Supervise = Callable[..., Result]

EVALUATES = """
import os, sys, time
from supervisor.protocol.messages import EvaluatedMessage, StepMessage, encode
descriptor = int(os.environ["SUPERVISE_PROGRESS_FD"])
os.set_blocking(descriptor, True)
flood = encode(EvaluatedMessage(1, {"loss": 1.0})) * int(sys.argv[3])
os.write(descriptor, encode(StepMessage(1)))
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    os.write(descriptor, flood)
    time.sleep(float(sys.argv[2]))
os.write(descriptor, encode(StepMessage(2)))
"""
"""Reports evaluations for so many seconds between two steps: after pauses of so long, so many."""
QUICK = {"max_num_restarts": 1, "grace_period": 0.3}


@pytest.mark.parametrize(
    ("kind", "stage", "said"),
    [
        ("hang", "INITIALIZING", "sleeping"),
        ("hang", "COMPILING", "sleeping"),
        ("hang", "TRAINING", "sleeping"),
        ("hang", "SAVING", "sleeping"),
        ("hang", "FINISHING", "sleeping"),
        ("loader", "TRAINING", "sleeping"),
        ("stop", "TRAINING", "stopped"),
        ("gil", "EVALUATING", "sleeping"),
    ],
)
def test_a_hang_is_found_out_and_restarted(
    supervise: Supervise, model_dir: Path, kind: str, stage: str, said: str
) -> None:
    restart = {**QUICK, "deadlines": {stage: 0.4}}
    toy = (kind, "--once", "--stage", stage)
    result = supervise(command_config(model_dir, *toy, restart=restart, success={"step": 6}))
    assert result.code == 0, result.log
    assert result.attempts == 2
    failure = result.summary["attempts"][0]["failure"]
    assert failure["rule"] == "hang"
    assert failure["cause"] == f"hang in stage {stage}"
    assert result.has_event("hang-detected", stage=stage)
    (stacks,) = (told["text"] for told in result.events("stacks-dumped"))
    assert re.search(rf"is {said}; it used \d+\.\d s of CPU time in the last [\d.]+ s;", stacks)
    assert result.has_event("budget-used", restarts=1, max_num_restarts=1)
    (native,) = model_dir.glob("*_restartable/attempts/0001/rank0.native-stacks.txt")
    assert "toy.py" in native.read_text()


@pytest.mark.parametrize("stage", ["COMPILING", "EVALUATING", "SAVING"])
def test_what_may_take_long_is_no_hang(supervise: Supervise, model_dir: Path, stage: str) -> None:
    restart = {**QUICK, "deadlines": {"TRAINING": 0.4}}
    result = supervise(command_config(model_dir, "linger", "--stage", stage, restart=restart))
    assert result.code == 0, result.log
    assert result.attempts == 1


@pytest.mark.parametrize("kind", ["hang", "gil"])
def test_the_python_stacks_are_dumped(supervise: Supervise, model_dir: Path, kind: str) -> None:
    """Also while the interpreter's lock is held for ever."""
    restart = {**QUICK, "deadlines": {"TRAINING": 0.4}}
    supervise(command_config(model_dir, kind, "--once", restart=restart))
    (stacks,) = model_dir.glob("*_restartable/attempts/0001/rank0.stacks.txt")
    assert "misbehave" in stacks.read_text()


def test_status_names_the_log_and_the_stacks_of_a_hang(
    supervise: Supervise, model_dir: Path
) -> None:
    restart = {"max_num_restarts": 0, "grace_period": 0.3, "deadlines": {"TRAINING": 0.4}}
    assert supervise(command_config(model_dir, "hang", restart=restart)).code == 76
    told = forked("status", model_dir).stdout.splitlines()
    (log,) = model_dir.glob("*_restartable/attempts/0001/rank0.log")
    assert told[told.index(f"log: {log}") + 1] == f"stacks: {log.with_suffix('.stacks.txt')}"
    assert told[0].startswith("FAILED: hang in stage TRAINING: ")
    assert re.search(r", at /\S*toy\.py:\d+ in \w+", told[0])


HANGS = """
import time
for step in range(1, 4):
    print("step", step, flush=True)
def waits():
    time.sleep(600)
waits()
"""
RUNS = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]])"


@pytest.mark.parametrize("by_shell", [True, False])
def test_a_hang_below_a_wrapper_is_shown_where_the_program_stands(
    supervise: Supervise, model_dir: Path, tmp_path: Path, by_shell: bool
) -> None:
    program = tmp_path / "train.py"
    program.write_text(HANGS)
    shell = ["bash", "-c", f"set -e; {shlex.join([sys.executable, str(program)])}; exit"]
    restart = {"max_num_restarts": 0, "grace_period": 0.3, "deadlines": {"TRAINING": 1}}
    config = command_config(model_dir, restart=restart)
    config["trainer"]["command"] = {
        "argv": shell if by_shell else [sys.executable, "-c", RUNS, str(program)],
        "progress": {"pattern": r"^step +(\d+)"},
    }
    result = supervise(config)
    (told,) = (told["text"] for told in result.events("stacks-dumped"))
    below = rf"below it, pid (\d+) \(\S+ {program}\) is sleeping; the stacks of pid \1 are written"
    assert re.search(below, told)
    (stacks,) = model_dir.glob("*_restartable/attempts/0001/rank0.below.native-stacks.txt")
    status = forked("status", model_dir).stdout.splitlines()
    assert f", at {program}:6 in waits" in status[0]
    assert f"stacks: {stacks}" in status


def test_a_program_that_says_nothing_is_not_watched(supervise: Supervise, model_dir: Path) -> None:
    config = command_config(model_dir, restart={"deadlines": {"STARTING": 0.1, "TRAINING": 0.1}})
    config["trainer"]["command"] = ["sleep", "0.6"]
    result = supervise(config)
    assert result.code == 0
    assert result.has_event("hang-unnoticeable")


def test_a_start_without_a_step_is_a_hang_if_the_config_limits_it(
    supervise: Supervise, model_dir: Path
) -> None:
    restart = {**QUICK, "max_num_restarts": 0, "deadlines": {"STARTING": 0.4}}
    config = command_config(model_dir, restart=restart)
    config["trainer"]["command"] = {
        "argv": [sys.executable, "-c", "import time; time.sleep(600)"],
        "progress": {"pattern": r"step (\d+)"},
    }
    result = supervise(config)
    assert result.code == 76, result.log
    assert result.has_event("hang-detected", stage="STARTING")


def test_reports_that_are_not_read_yet_are_no_silence(
    supervise: Supervise, model_dir: Path
) -> None:
    """The next step waits behind them: at the end of a full pipe, or in the worker that waits."""
    config = command_config(model_dir, restart={**QUICK, "deadlines": {"TRAINING": 2.0}})
    config["trainer"]["command"]["argv"] = [sys.executable, "-c", EVALUATES, "4.0", "0", "10000"]
    result = supervise(config)
    assert result.code == 0, result.log
    assert result.attempts == 1
    assert result.has_event("reports-left-out")


def test_evaluations_are_no_steps(supervise: Supervise, model_dir: Path) -> None:
    restart = {**QUICK, "max_num_restarts": 0, "deadlines": {"TRAINING": 0.4}}
    config = command_config(model_dir, restart=restart)
    config["trainer"]["command"]["argv"] = [sys.executable, "-c", EVALUATES, "600", "0.05", "1"]
    result = supervise(config)
    assert result.code == 76
    assert result.has_event("attempt-failed", code="hang")


def test_steps_read_from_the_output_are_a_sign_of_life(
    supervise: Supervise, model_dir: Path
) -> None:
    config = command_config(model_dir, restart={**QUICK, "deadlines": {"TRAINING": 0.4}})
    script = "import time; print('step 3', flush=True); time.sleep(60)"
    config["trainer"]["command"] = {
        "argv": ["python3", "-c", script],
        "progress": {"pattern": r"step (\d+)"},
    }
    config["trainer"]["init"]["autorestart"]["max_num_restarts"] = 0
    result = supervise(config)
    assert result.code == 76
    assert result.has_event("attempt-failed", code="hang")


def test_a_hang_is_handled_also_where_the_attempts_folder_is_lost(
    start: Start, model_dir: Path
) -> None:
    restart = {**QUICK, "deadlines": {"COMPILING": 1.0}}
    toy = ("hang", "--once", "--stage", "COMPILING")
    config = command_config(model_dir, *toy, restart=restart)
    running = start(config)
    running.wait_for_event("stage-entered", stage="COMPILING")
    (attempts,) = model_dir.glob("*_restartable/attempts")
    shutil.rmtree(attempts)
    result = running.result()
    assert result.code == 0, result.log
    assert result.summary["attempts"][0]["failure"]["rule"] == "hang"
