"""Unmodified programs under the whole of `supervise run`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.adapters.kernel.capacity import free_ports
from tests.running import Result, Running, Start

Supervise = Callable[..., Result]

TRAIN = """
import itertools, sys, time
from pathlib import Path
imported_ahead = "jax" in sys.modules
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

attempt, where = sys.argv[1:]
log = itertools.cycle(Path(where).parent.glob("*_restartable/run.log"))
print("imported ahead:", imported_ahead)
step = jax.jit(lambda x: x @ x / 2)
x = jnp.eye(4)
with ocp.CheckpointManager(where) as manager:
    start = manager.latest_step() or 0
    if start:
        manager.restore(start)
    for number in range(start + 1, 7):
        x = step(x)
        jax.monitoring.record_scalar("mine/train/loss", 0.5, step=number)
        if number == 3:
            manager.save(number, args=ocp.args.StandardSave({"x": x}))
            manager.wait_until_finished()
        if number == 5 and attempt == "1":
            while "a standby is ready" not in next(log).read_text():
                jax.monitoring.record_scalar("mine/train/loss", 0.5, step=number)
                time.sleep(0.05)
            try:
                raise ConnectionResetError("the peer went away")
            except ConnectionResetError as error:
                raise RuntimeError("out of luck") from error
"""


def config(model_dir: Path, argv: list[str], **command: Any) -> dict[str, Any]:
    restart = {"max_num_restarts": 1, "backoff": {"first": 0.05}}
    return {
        "trainer": {
            "init": {
                "model_dir": str(model_dir),
                "devices": {"platform": "cpu", "count": 1},
                "autorestart": restart,
            },
            "command": {"argv": argv, **command},
        }
    }


def test_a_jax_program_with_orbax_crashes_and_resumes(
    supervise: Supervise, model_dir: Path, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    argv = [sys.executable, str(program), "{attempt}", "{model_dir}/checkpoints"]
    result = supervise(config(model_dir, argv, success={"step": 6}))
    assert result.code == 0, result.log + result.out
    assert result.has_event("stage-entered", attempt=1, stage="COMPILING")
    assert not result.has_event("stage-entered", stage="SAVING"), "one line a commit is enough"
    assert len(result.events("checkpoint-committed", step=3)) == 1
    assert result.has_event("rank-ended", attempt=1, rank=0, code=1, stage="TRAINING", step=5)
    assert result.has_event("stage-entered", attempt=2, stage="RESTORING")
    assert b"imported ahead: False" in result.rank_log(1)
    assert b"imported ahead: True" in result.rank_log(2)
    failure = result.summary["attempts"][0]["failure"]
    assert failure["root_cause"] == "ConnectionResetError: the peer went away"
    assert failure["where"].startswith(f"{program}:")
    told = result.event("attempt-failed", place=failure["where"])
    assert told["root_cause"] == failure["root_cause"]
    assert "out of luck" in failure["traceback"]
    assert "bootstrap" not in failure["traceback"]


def test_a_compile_error_ends_the_job(
    supervise: Supervise, model_dir: Path, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text("import jax\njax.jit(lambda x: 1 if x > 0 else 2)(1.0)\n")
    result = supervise(config(model_dir, [sys.executable, str(program)]))
    assert result.code == 70, result.log
    assert result.attempts == 1
    assert result.has_event("rank-ended", code=1, stage="COMPILING")
    assert "TracerBoolConversionError" in result.summary["attempts"][0]["failure"]["root_cause"]


@pytest.mark.parametrize(
    ("bootstrap", "root_cause"), [(True, "OSError: b"), (False, "exit code 9")]
)
def test_the_bootstrap_can_be_left_out(
    supervise: Supervise, model_dir: Path, bootstrap: bool, root_cause: str
) -> None:
    code = "import os\ntry: raise OSError('b')\nexcept OSError: os._exit(9)"
    argv = ["python3", "-c", code]
    result = supervise(config(model_dir, argv, bootstrap=bootstrap))
    assert result.summary["attempts"][0]["failure"]["root_cause"] == root_cause


def test_that_it_cannot_be_used_is_told(supervise: Supervise, model_dir: Path) -> None:
    result = supervise(config(model_dir, ["python3", "--version"]))
    assert result.code == 0
    reason = result.event("bootstrap-left-out")["reason"]
    assert "--version" in reason


@pytest.mark.parametrize(("code", "spends"), [(143, "preemptions"), (3, "restarts")])
def test_a_mere_exit_is_judged_by_its_code(
    supervise: Supervise, model_dir: Path, code: int, spends: str
) -> None:
    argv = ["python3", "-c", f"import sys; sys.exit({code} if sys.argv[1] == '1' else 0)"]
    result = supervise(config(model_dir, [*argv, "{attempt}"]))
    assert result.code == 0, result.log
    assert result.summary["attempts"][0]["failure"]["root_cause"] == f"exit code {code}"
    used = {"restarts": 0, "preemptions": 0} | {spends: 1}
    assert result.has_event("budget-used", **used)


def test_a_quiet_program_is_not_taken_for_hung(
    supervise: Supervise, model_dir: Path, tmp_path: Path
) -> None:
    """What jax tells is no promise to tell of steps."""
    program = tmp_path / "train.py"
    program.write_text("import time, jax.numpy as jnp\njnp.ones(3).sum()\ntime.sleep(1.5)\n")
    job = config(model_dir, [sys.executable, str(program)])
    job["trainer"]["init"]["autorestart"]["deadlines"] = {"TRAINING": 0.3}
    result = supervise(job)
    assert result.code == 0, result.log
    assert result.attempts == 1


def test_the_example(supervise: Supervise, model_dir: Path) -> None:
    text = (Path(__file__).parents[2] / "examples/any_program.yaml").read_text()
    job = yaml.safe_load(text)
    job["trainer"]["init"]["model_dir"] = str(model_dir)
    job["trainer"]["init"]["autorestart"]["backoff"] = {"first": 0.05}
    result = supervise(job)
    assert result.code == 0, result.log
    assert result.attempts == 2
    failed = result.event("attempt-failed")
    assert "out of luck in the first attempt" in failed["root_cause"]


def test_the_stacks_of_a_hang_are_dumped(
    supervise: Supervise, model_dir: Path, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import sys, time\ndef stuck():\n    time.sleep(600)\n"
        "print('step', 3, flush=True)\nif sys.argv[1] == '1': stuck()\n"
    )
    argv = [sys.executable, str(program), "{attempt}"]
    job = config(model_dir, argv, progress={"pattern": r"step (\d+)"})
    job["trainer"]["init"]["autorestart"]["deadlines"] = {"TRAINING": 0.5}
    result = supervise(job)
    assert result.code == 0, result.log
    (stacks,) = model_dir.glob("*_restartable/attempts/0001/rank0.stacks.txt")
    assert "in stuck" in stacks.read_text()


PREEMPTIBLE = r"""
import os, sys, time
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

port, where = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)
with ocp.CheckpointManager(where) as manager:
    start = manager.latest_step() or 0
    for number in range(start + 1, start + 1000):
        if start and number == start + 3:
            break
        if number == 2:
            os.write(1, b"it trains\n")
        if manager.reached_preemption(number):
            manager.save(number, args=ocp.args.StandardSave({"x": jnp.eye(2)}), force=True)
            manager.wait_until_finished()
            sys.exit()
        time.sleep(0.05)
"""


@pytest.mark.parametrize("quiet", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_orbax_s_own_way_to_be_preempted(
    start: Start, model_dir: Path, tmp_path: Path, quiet: bool
) -> None:
    """Of a SIGTERM that jax takes, Orbax tells by an event, and jax itself unless it is quiet."""
    program = tmp_path / "train.py"
    program.write_text(PREEMPTIBLE)
    (port,) = free_ports(1)
    argv = [sys.executable, str(program), str(port), "{model_dir}/checkpoints"]
    env = {"TF_CPP_MIN_LOG_LEVEL": "3" if quiet else "0"}
    running = start(config(model_dir, argv, env=env))
    running.wait_for("it trains")
    (pid,) = running.wait_for_event("workers-started")["pids"]
    os.kill(pid, signal.SIGTERM)
    result = running.result(timeout=120)
    assert (result.code, result.attempts) == (0, 2), result.log
    assert b"SIGTERM caught" in result.rank_log(1) or quiet
    assert result.has_event("worker-told-to-stop", rank=0)
    assert result.event("attempt-started", attempt=2)["step"] is not None
    assert result.summary["attempts"][0]["failure"]["charge"] == "preemptions"


HOLDS_SIGTERM = r"""
import os, sys, time
import jax
from jax.experimental import multihost_utils

port, go, asks = sys.argv[1], sys.argv[2], sys.argv[3] == "asks"
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)
os.write(1, b"it trains\n")
while not os.path.exists(go):
    time.sleep(0.01)
number = 0
while asks and not multihost_utils.reached_preemption_sync_point(number):
    number += 1
    time.sleep(0.05)
os._exit(0)  # jax's own end may hang while the notice is on its way to the coordinator
"""


@pytest.fixture
def holds_sigterm(
    start: Start, model_dir: Path, tmp_path: Path
) -> Callable[[str], tuple[Running, Path]]:
    """Starts a program that goes on when a file is there, whatever signal comes."""

    def begin(asks: str) -> tuple[Running, Path]:
        program, go = tmp_path / "train.py", tmp_path / "go"
        program.write_text(HOLDS_SIGTERM)
        (port,) = free_ports(1)
        argv = [sys.executable, str(program), str(port), str(go), asks]
        running = start(config(model_dir, argv, env={"TF_CPP_MIN_LOG_LEVEL": "0"}))
        running.wait_for("it trains")
        return running, go

    return begin


def test_a_program_that_jax_tells_of_no_sigterm_has_done_its_work(
    holds_sigterm: Callable[[str], tuple[Running, Path]],
) -> None:
    running, go = holds_sigterm("asks nothing")
    (pid,) = running.wait_for_event("workers-started")["pids"]
    os.kill(pid, signal.SIGTERM)
    running.wait_for("SIGTERM caught")
    go.touch()
    result = running.result(timeout=120)
    assert (result.code, result.attempts) == (0, 1), result.log
    assert result.has_event("worker-told-to-stop", rank=0)
    assert result.event("job-ended")["status"] == "SUCCEEDED"


def test_a_drain_that_the_program_never_hears_of_ends_with_its_success(
    holds_sigterm: Callable[[str], tuple[Running, Path]],
) -> None:
    running, go = holds_sigterm("asks nothing")
    running.signal(signal.SIGTERM)
    running.wait_for("SIGTERM caught")
    go.touch()
    result = running.result(timeout=120)
    assert (result.code, result.attempts) == (0, 1), result.log
    assert result.event("job-ended")["status"] == "SUCCEEDED"


def test_a_program_that_jax_tells_of_a_sigterm_was_preempted(
    holds_sigterm: Callable[[str], tuple[Running, Path]],
) -> None:
    running, go = holds_sigterm("asks")
    running.signal(signal.SIGTERM)
    running.wait_for("SIGTERM caught")
    go.touch()
    result = running.result(timeout=120)
    assert (result.code, result.attempts) == (75, 1), result.log
