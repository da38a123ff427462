"""`command.save_on_sigterm`: a real Orbax loop that calls `save` at every step, told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.kernel.capacity import free_ports
from tests.bootstrap.programs import Twice
from tests.bootstrap.test_supervised import config
from tests.running import Result, Running, Start

Supervise = Callable[..., Result]

HELD_AT = 5
"""A first attempt stands still after step `HELD_AT` until the file `go` is there."""
BEGIN = """
import hashlib, os, sys, time
from pathlib import Path
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

where, go, last, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if port != "0":
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)
step = jax.jit(lambda x: jnp.sin(x @ x) + 0.1)
x = jnp.linspace(0.0, 1.0, 16).reshape(4, 4)
rarely = ocp.CheckpointManagerOptions(save_interval_steps=1000)

def hold(start, number):
    if not start and number == 5:
        os.write(1, b"it stands still\\n")
        while not go.exists():
            time.sleep(0.01)
    if port != "0":  # jax misses its own answer where steps are much quicker
        time.sleep(0.05)

def end(x):
    digest = hashlib.sha256(x.tobytes()).hexdigest()
    os.write(1, f"end: {digest}\\n".encode())
"""
LOOP = """
with ocp.CheckpointManager(where, options=rarely) as manager:
    start = manager.latest_step() or 0
    if start:
        x = manager.restore(start, args=ocp.args.StandardRestore({"x": x}))["x"]
    for number in range(start + 1, last + 1):
        x = step(x)
        manager.save(number, args=ocp.args.StandardSave({"x": x}))
        hold(start, number)
end(x)
"""
PROGRAMS = {
    "orbax": LOOP,
    "force in its place": LOOP.replace(
        "manager.save(number, args=", "manager.save(number, None, None, None, False, "
    ),
    "orbax v1": """
import orbax.checkpoint.experimental.v1 as v1
policy = v1.training.save_decision_policies.FixedIntervalPolicy(1000)
with v1.training.Checkpointer(where, save_decision_policy=policy) as checkpointer:
    start = checkpointer.latest.step if checkpointer.latest else 0
    if start:
        x = checkpointer.load(start, {"x": x})["x"]
    for number in range(start + 1, last + 1):
        x = step(x)
        checkpointer.save(number, {"x": x})
        hold(start, number)
end(x)
""",
    "a handler of its own": "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
    + LOOP,
}
TWO_MANAGERS = """
first = ocp.CheckpointManager(where, options=rarely)
second = ocp.CheckpointManager(where.with_name("other"), options=rarely)
start = second.latest_step() or 0
if start:
    x = second.restore(start, args=ocp.args.StandardRestore({"x": x}))["x"]
    assert (first.restore(start, args=ocp.args.StandardRestore({"x": x}))["x"] == x).all()
for number in range(start + 1, last + 1):
    x = step(x)
    first.save(number, args=ocp.args.StandardSave({"x": x}))
    hold(start, number)
    second.save(number, args=ocp.args.StandardSave({"x": x}))
end(x)
"""


@pytest.fixture
def job(tmp_path: Path, model_dir: Path) -> Callable[..., dict[str, Any]]:
    def make(program: str, last: int = 10, port: int = 0) -> dict[str, Any]:
        file = tmp_path / "train.py"
        file.write_text(BEGIN + program)
        argv = [sys.executable, str(file), "{model_dir}/checkpoints", str(tmp_path / "go")]
        made = config(model_dir, [*argv, str(last), str(port)], save_on_sigterm=True)
        made["trainer"]["init"]["autorestart"]["standby"] = "off"
        return made

    return make


def end_of(output: str) -> str:
    (line,) = [line for line in output.splitlines() if "end: " in line]
    return line.partition("end: ")[2]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The bits after 10 and after 60 steps that nobody disturbs; the programs compute the same."""
    file = tmp_path_factory.mktemp("undisturbed") / "train.py"
    file.write_text(f"{BEGIN}\nfor number in range(1, 61):\n    x = step(x)\n    end(x)\n")
    words = [sys.executable, str(file), "nowhere", "no go", "60", "0"]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=env)
    ends = [end_of(line) for line in done.stdout.splitlines()]
    return {number: ends[number - 1] for number in (10, 60)}


def stop_worker(running: Running, go: Path) -> None:
    """SIGTERM to the worker alone, while it stands still."""
    running.wait_for("it stands still")
    (pid,) = running.wait_for_event("workers-started")["pids"]
    os.kill(pid, signal.SIGTERM)
    go.touch()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(name, marks=[pytest.mark.slow] if number else [])
        for number, name in enumerate(PROGRAMS)
    ],
)
def test_a_worker_that_is_told_to_stop_saves_its_next_step_and_resumes_to_the_same_bits(
    start: Start,
    job: Callable[..., dict[str, Any]],
    tmp_path: Path,
    undisturbed: dict[int, str],
    program: str,
) -> None:
    running = start(job(PROGRAMS[program]))
    stop_worker(running, tmp_path / "go")
    result = running.result()
    assert (result.code, result.attempts) == (0, 2), result.log + result.out
    assert result.has_event("worker-told-to-stop", rank=0)
    assert result.event("attempt-started", attempt=2)["step"] == HELD_AT + 1
    assert result.summary["attempts"][0]["failure"]["charge"] == "preemptions"
    assert end_of(result.rank_log(2).decode()) == undisturbed[10]


def test_under_jax_distributed_jax_handles_sigterm_and_says_at_which_step_to_save(
    start: Start,
    job: Callable[..., dict[str, Any]],
    tmp_path: Path,
    undisturbed: dict[int, str],
) -> None:
    """It says so at the step after the last one that Orbax has asked about."""
    (port,) = free_ports(1)
    running = start(job(LOOP, last=60, port=port))
    running.wait_for("it stands still")
    (pid,) = running.wait_for_event("workers-started")["pids"]
    os.kill(pid, signal.SIGTERM)
    running.wait_for("SIGTERM caught")
    (tmp_path / "go").touch()
    result = running.result()
    assert (result.code, result.attempts) == (0, 2), result.log + result.out
    assert result.has_event("worker-told-to-stop", rank=0)
    assert HELD_AT < result.event("attempt-started", attempt=2)["step"] < 60
    assert end_of(result.rank_log(2).decode()) == undisturbed[60]


def test_all_managers_of_a_loop_end_with_the_same_step(
    start: Start,
    job: Callable[..., dict[str, Any]],
    tmp_path: Path,
    undisturbed: dict[int, str],
) -> None:
    """The first one has been called with step 5 already when SIGTERM comes."""
    running = start(job(TWO_MANAGERS))
    stop_worker(running, tmp_path / "go")
    result = running.result()
    assert (result.code, result.attempts) == (0, 2), result.log + result.out
    assert result.event("attempt-started", attempt=2)["step"] == HELD_AT + 1
    assert end_of(result.rank_log(2).decode()) == undisturbed[10]


def test_a_drain_saves_and_the_same_command_resumes_to_the_same_bits(
    start: Start,
    job: Callable[..., dict[str, Any]],
    tmp_path: Path,
    undisturbed: dict[int, str],
) -> None:
    made = job(LOOP)
    running = start(made)
    running.wait_for("it stands still")
    running.signal(signal.SIGTERM)
    running.wait_for_event("save-awaited")
    (tmp_path / "go").touch()
    stopped = running.result()
    assert stopped.code == 75, stopped.log
    assert stopped.has_event("attempt-stopped", saved=True, step=HELD_AT + 1)
    result = start(made).result()
    assert result.code == 0, result.log
    assert end_of(result.rank_log(2).decode()) == undisturbed[10]


def test_what_never_saves_is_killed_after_the_grace_period_and_the_remedy_is_told(
    start: Start, job: Callable[..., dict[str, Any]], model_dir: Path
) -> None:
    made = job(LOOP)
    made["trainer"]["init"]["autorestart"]["grace_period"] = 0.3
    running = start(made)
    running.wait_for("it stands still")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert "call save at every step" in result.event("save-awaited")["text"]
    assert result.has_event("rank-ended", rank=0, signal="SIGKILL")


def test_sigterm_before_the_first_save_ends_the_program_at_once(
    start: Start, job: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """It may never call `save`: then nothing must hold it up."""
    running = start(job("hold(0, 5)\n"))
    running.wait_for("it stands still")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert result.has_event("rank-ended", rank=0, signal="SIGTERM")


SEEN = """
import signal
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
manager = ocp.CheckpointManager(where, options=rarely)
for number in (1, 2):
    manager.save(number, args=ocp.args.StandardSave({"x": x}))
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
if (pid := os.fork()) == 0:
    signal.pause()
os.kill(pid, signal.SIGTERM)
assert os.waitpid(pid, 0)[1] == signal.SIGTERM, "a child dies of it as ever"
try:
    manager.save("no step", args=ocp.args.StandardSave({"x": x}))
except Exception as error:
    trace = error.__traceback__
    assert "bootstrap" not in trace.tb_next.tb_frame.f_code.co_filename
else:
    raise AssertionError
ORIGINAL = signal.signal(signal.SIGTERM, signal.SIG_IGN)
assert ORIGINAL is signal.SIG_DFL
manager.close()  # Orbax may wait for ever at the end of a program that does not
print("as ever")
"""
ON = {"JAX_PLATFORMS": "cpu", "SUPERVISE_SAVE_ON_SIGTERM": "1"}


def test_the_program_sees_nothing_of_it(twice: Twice, tmp_path: Path) -> None:
    twice.write({"train.py": BEGIN + SEEN})
    outcome = twice.bootstrapped("train.py", str(tmp_path / "c"), "go", "0", "0", env=ON)
    assert outcome.stdout == b"as ever\n", outcome.stderr


def test_another_version_of_orbax_is_left_alone_and_told(twice: Twice, tmp_path: Path) -> None:
    package = {
        "orbax/checkpoint/__init__.py": "from orbax.checkpoint import version, checkpoint_manager",
        "orbax/checkpoint/version.py": "__version__ = '99.1'",
        "orbax/checkpoint/checkpoint_manager.py": "class CheckpointManager: save = len",
    }
    program = (
        "import orbax.checkpoint.checkpoint_manager as c\nprint(c.CheckpointManager.save is len)"
    )
    twice.write({**package, "train.py": program})
    outcome = twice.bootstrapped("train.py", env=ON)
    assert outcome.stdout == b"True\n", outcome.stderr
    (told,) = [message for message in twice.messages if "99.1" in str(message)]
    assert "save-on-sigterm-off" in str(told)
