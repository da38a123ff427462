"""Programs that report by `supervise_worker`, which the supervisor puts on their path."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result, Start

Supervise = Callable[..., Result]

LOOP = """
import os, sys, time
from pathlib import Path
import supervise_worker

saves = Path(sys.argv[1])
start = max((int(done.parent.name) for done in saves.glob("*/commit_success.txt")), default=0)

def save(n):
    with supervise_worker.stage("SAVING"):
        (saves / str(n)).mkdir(parents=True)
        (saves / str(n) / "commit_success.txt").touch()
    supervise_worker.saved(n)

for n in range(start + 1, 1000):
    supervise_worker.step(n, loss=1 / n)
    if n == 2:
        save(n)
    if n == 4:
        os.write(1, b"it trains\\n")
    if start and n == start + 3:
        break
    if supervise_worker.should_stop():
        save(n)
        sys.exit()
    time.sleep(0.01 if n > 1 and not start else 0)
"""


def config(model_dir: Path, argv: list[str], **command: Any) -> dict[str, Any]:
    restart = {"max_num_restarts": 0, "backoff": {"first": 0.05}, "standby": "off"}
    return {
        "trainer": {
            "init": {"model_dir": str(model_dir), "autorestart": restart},
            "command": {"argv": argv, **command},
        }
    }


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    return str(path)


@pytest.mark.parametrize("bootstrap", [True, False])
def test_a_drained_loop_saves_and_goes_on_in_the_next_run(
    start: Start, supervise: Supervise, model_dir: Path, program: str, bootstrap: bool
) -> None:
    argv = [sys.executable, program, "{model_dir}/checkpoints"]
    job = config(model_dir, argv, bootstrap=bootstrap)
    running = start(job)
    running.wait_for("it trains")
    running.signal(signal.SIGTERM)
    drained = running.result()
    assert drained.code == 75, drained.out
    newest = drained.summary["highest_committed_step"]
    assert newest > 2, "it saved when it was asked to stop"
    assert drained.has_event("stage-entered", stage="SAVING")
    again = supervise(job)
    assert again.code == 0, again.out
    assert again.event("attempt-started")["step"] == newest
    assert again.event("attempt-ended")["ending_step"] == newest + 3, "the last step is always told"


@pytest.mark.parametrize("bootstrap", [True, False])
def test_a_preempted_loop_saves_and_is_started_again(
    start: Start, model_dir: Path, program: str, bootstrap: bool
) -> None:
    argv = [sys.executable, program, "{model_dir}/checkpoints"]
    running = start(config(model_dir, argv, bootstrap=bootstrap))
    running.wait_for("it trains")
    (pid,) = running.wait_for_event("workers-started")["pids"]
    os.kill(pid, signal.SIGTERM)
    result = running.result()
    assert (result.code, result.attempts) == (0, 2), result.out
    assert result.summary["preemptions_used"] == 1
    assert result.event("attempt-started", attempt=2)["step"] > 2


def test_a_program_below_a_shell_reports_too(supervise: Supervise, model_dir: Path) -> None:
    code = "import supervise_worker as w; w.step(1); w.step(2)"
    script = f"{sys.executable} -c '{code}'; {sys.executable} -S -c '{code}'"
    result = supervise(config(model_dir, ["bash", "-c", script], success={"step": 2}))
    assert result.code == 0, result.out


def test_a_failure_has_the_stage_and_step_that_the_program_reported(
    supervise: Supervise, model_dir: Path
) -> None:
    code = (
        "import supervise_worker as w\n"
        "for n in (1, 2, 3): w.step(n)\n"
        "with w.stage('EVALUATING'): raise KeyError('no such metric')\n"
    )
    result = supervise(config(model_dir, [sys.executable, "-c", code]))
    assert result.code == 70, result.out
    assert result.has_event("rank-ended", stage="EVALUATING", step=3)


def test_a_bad_call_is_told_in_the_log(supervise: Supervise, model_dir: Path) -> None:
    code = "import supervise_worker as w; w.step('one'); w.step(2)"
    result = supervise(config(model_dir, [sys.executable, "-c", code]))
    assert result.code == 0, result.out
    assert result.event("worker-notice")["code"] == "worker-call-ignored"


def test_the_paths_of_the_user_come_first(
    supervise: Supervise, model_dir: Path, tmp_path: Path
) -> None:
    """A copy in a folder of the user wins."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "supervise_worker.py").write_text("name = 'theirs'\n")
    code = (
        "import os, supervise_worker\n"
        "assert supervise_worker.name == 'theirs'\n"
        "assert len(os.environ['PYTHONPATH'].split(':')) == 2\n"
    )
    job = config(model_dir, [sys.executable, "-c", code], env={"PYTHONPATH": str(theirs)})
    result = supervise(job)
    assert result.code == 0, result.out
