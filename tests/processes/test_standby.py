"""A standby under the whole of `supervise run`: when there is one, and what becomes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.engines.ahead.standby_pool import choose
from tests.running import Result, Running, Start

Supervise = Callable[..., Result]
GB = 1 << 30

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path

model_dir, attempt = Path(sys.argv[1]), int(sys.argv[2])
pipe = int(os.environ["SUPERVISE_PROGRESS_FD"])

def say(**message):
    os.write(pipe, json.dumps({"v": 1, **message}).encode() + b"\\n")

def log():
    return "".join(path.read_text() for path in model_dir.glob("*_restartable/run.log"))

print("colorsys" in sys.modules, os.getpid(), flush=True)
say(kind="stage", stage="TRAINING")
step = 0
while log().count("a standby is ready") < attempt:
    step += 1
    say(kind="step", step=step)
    time.sleep(0.02)
print("there is a standby", flush=True)
"""
DIES = "if attempt < 3: os.kill(os.getpid(), signal.SIGKILL)"
WAITS = "if attempt == 1: signal.pause()"


@pytest.fixture
def config(tmp_path: Path, model_dir: Path) -> Callable[[str], dict[str, Any]]:
    def make(then: str, preload: str = "colorsys") -> dict[str, Any]:
        program = tmp_path / "program.py"
        program.write_text(PROGRAM + then)
        argv = [sys.executable, str(program), "{model_dir}", "{attempt}"]
        restart = {"max_num_restarts": 3, "backoff": {"first": 0.01}, "standby": "imports"}
        return {
            "trainer": {
                "init": {"model_dir": str(model_dir), "autorestart": restart},
                "command": {"argv": argv, "preload": [preload]},
            }
        }

    return make


def standby_pid(running: Running) -> int:
    return int(running.wait_for_event("standby-ready", kind="imports")["pid"])


def test_each_attempt_goes_on_in_the_standby_of_the_one_before(
    supervise: Supervise, config: Callable[..., dict[str, Any]]
) -> None:
    result = supervise(config(DIES))
    assert result.code == 0, result.log + result.err
    assert result.attempts == 3
    assert len(result.events("standby-used", kind="imports")) == 2
    pids = [told["pid"] for told in result.events("standby-ready", kind="imports")]
    firsts = [result.rank_log(attempt).split(b"\n")[0].decode() for attempt in (1, 2, 3)]
    assert firsts[0].startswith("False ")
    assert firsts[1:] == [f"True {pids[0]}", f"True {pids[1]}"]


def test_doctor_names_it_and_leaves_the_job_as_it_is(
    start: Start, config: Callable[..., dict[str, Any]], model_dir: Path
) -> None:
    running = start(config(WAITS))
    (worker,) = running.wait_for_event("workers-started")["pids"]
    waiting = standby_pid(running)
    argv = [sys.executable, "-m", "supervisor", "doctor", "--json", str(model_dir)]
    told = subprocess.run(argv, capture_output=True, text=True, check=False)
    findings = json.loads(told.stdout)["findings"]
    (one,) = (each["text"] for each in findings if each["check"] == "standby")
    assert f"pid {waiting} (" in one
    assert "kind 'imports'" in one
    assert any("its supervisor runs" in each["text"] for each in findings)
    os.kill(worker, signal.SIGKILL)
    result = running.result()
    assert result.code == 0, result.log + result.err
    assert result.rank_log(2).startswith(f"True {waiting}\n".encode())
    assert not result.events("file-restored", "lock-ignored", "file-unwritable")


def test_what_a_command_has_set_up_before_python_holds_in_a_standby_too(
    supervise: Supervise, config: Callable[..., dict[str, Any]]
) -> None:
    job = config("print('nice', os.getpriority(os.PRIO_PROCESS, 0), flush=True)\n" + DIES)
    command = job["trainer"]["command"]
    command["argv"] = ["nice", "-n", "1", *command["argv"]]
    result = supervise(job)
    assert result.code == 0, result.log + result.err
    assert len(result.events("standby-used", kind="imports")) == 2
    expected = f"nice {min(19, os.getpriority(os.PRIO_PROCESS, 0) + 1)}\n".encode()
    for attempt in (1, 2, 3):
        assert result.rank_log(attempt).endswith(expected)


FIRST = PROGRAM.partition("print(")[0]
RECOVERS = """
def standby_log():
    return list(model_dir.glob("*_restartable/attempts/standby.log"))

for turn in ("first", "second"):
    for stage in ("TRAINING", "COMPILING", "TRAINING"):
        say(kind="stage", stage=stage, inferred=True)
    say(kind="notice", text=f"the {turn} turn")
    while f"the {turn} turn" not in log():
        time.sleep(0.02)
"""
NOT_YET = 'assert not standby_log(), "too early"'
STEPS = 'say(kind="step", step=1)'
COMMITS = """
step = model_dir / "checkpoints" / "1"
step.mkdir(parents=True)
(step / "commit_success.txt").touch()
"""
IS_READY = """
while "a standby is ready" not in log():
    time.sleep(0.02)
"""


@pytest.mark.parametrize("sign", [STEPS, COMMITS], ids=["step", "commit"])
def test_it_is_not_prepared_before_the_attempt_has_recovered(
    supervise: Supervise, config: Callable[..., dict[str, Any]], sign: str
) -> None:
    job = config("")
    program = "\n".join((FIRST, RECOVERS, NOT_YET, sign, IS_READY))
    Path(job["trainer"]["command"]["argv"][1]).write_text(program)
    result = supervise(job)
    assert result.code == 0, result.log + result.err
    assert result.attempts == 1


DIES_BEFORE_IT_IS_READY = """
import psutil
folder = Path(os.environ["PYTHONPATH"].partition(":")[0])  # ours is the last one
if attempt == 1:
    say(kind="step", step=1)
    while not (folder / "begun").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""
IS_HELD = """
standby = psutil.Process(int((folder / "begun").read_text()))
assert standby.status() == psutil.STATUS_STOPPED, standby.status()
(folder / "may").touch()
"""
GETS_READY = """
import os, pathlib, time
folder = pathlib.Path(__file__).parent
(folder / "writing").write_text(str(os.getpid()))
(folder / "writing").rename(folder / "begun")
while not (folder / "may").exists():
    time.sleep(0.01)
"""


def test_one_that_is_not_ready_waits_until_the_next_attempt_has_recovered(
    supervise: Supervise, config: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "gets_ready.py").write_text(GETS_READY)
    job = config("", preload="gets_ready")
    job["trainer"]["command"]["env"] = {"PYTHONPATH": str(folder)}
    program = "\n".join((FIRST, DIES_BEFORE_IT_IS_READY, RECOVERS, IS_HELD, STEPS, IS_READY))
    Path(job["trainer"]["command"]["argv"][1]).write_text(program)
    result = supervise(job)
    assert result.code == 0, result.log + result.err
    assert result.attempts == 2
    begun = int((folder / "begun").read_text())
    assert result.has_event("standby-ready", kind="imports", pid=begun)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [("{attempt}", "read SUPERVISE_ATTEMPT"), ("{resume_step}", "pass it as an argument")],
)
def test_what_can_never_fit_is_not_prepared_and_told_once(
    supervise: Supervise, config: Callable[..., dict[str, Any]], value: str, remedy: str
) -> None:
    job = config("")
    job["trainer"]["command"]["env"] = {"RUN": value}
    told = PROGRAM.replace('log().count("a standby is ready") < attempt', TOLD)
    Path(job["trainer"]["command"]["argv"][1]).write_text(told + DIES)
    result = supervise(job)
    assert result.code == 0, result.log + result.err
    assert result.attempts == 3
    reason = result.event("standby-failed")["reason"]
    assert reason.startswith(f"RUN in the config has {value}")
    assert remedy in reason
    assert not result.has_event("standby-ready")
    assert not result.has_event("standby-unfit")


TOLD = '"no standby is prepared" not in log() or step < 5'


def test_off_means_off(supervise: Supervise, config: Callable[..., dict[str, Any]]) -> None:
    job = config("")
    job["trainer"]["init"]["autorestart"]["standby"] = "off"
    path = Path(job["trainer"]["command"]["argv"][1])
    path.write_text(PROGRAM.replace('log().count("a standby is ready") < attempt', "step < 20"))
    result = supervise(job)
    assert result.code == 0
    assert not [name for name in result.names() if name.startswith("standby")]


def test_it_dies_with_the_supervisor(start: Start, config: Callable[..., dict[str, Any]]) -> None:
    running = start(config(WAITS))
    running.wait_for("there is a standby")
    standby = psutil.Process(standby_pid(running))
    running.process.kill()
    standby.wait(30)  # that all else is gone, too, the fixture sees


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_without_it_there_is_a_cold_start(
    start: Start, config: Callable[..., dict[str, Any]], number: signal.Signals
) -> None:
    running = start(config(WAITS.replace("== 1", "< 3")))
    running.wait_for("there is a standby")
    os.kill(standby_pid(running), number)
    if number == signal.SIGKILL:
        running.wait_for_event("standby-failed", reason="it ended by itself, see standby.log")
    kill_worker(running)
    if number == signal.SIGSTOP:
        running.wait_for_event("standby-lost", reason="stopped")
    running.wait_for_event("attempt-started", attempt=2)
    assert not running.has_event("standby-used")
    running.signal(signal.SIGINT)
    assert running.result().code == 79


def kill_worker(running: Running) -> None:
    (pid,) = running.wait_for_event("workers-started")["pids"]
    os.kill(pid, signal.SIGKILL)


def test_a_standby_that_cannot_be_is_told_once_and_the_job_goes_on(
    supervise: Supervise, config: Callable[..., dict[str, Any]]
) -> None:
    program = config("", preload="no_such_thing")
    path = Path(program["trainer"]["command"]["argv"][1])
    path.write_text(PROGRAM.replace("a standby is ready", "no standby"))
    result = supervise(program)
    assert result.code == 0, result.log
    reason = result.event("standby-failed")["reason"]
    assert reason.startswith("ModuleNotFoundError when no_such_thing")


_JAX = """
told = []
def register_event_duration_secs_listener(f): told.append(f)
register_scalar_listener = register_event_listener = id
def clear_event_listeners(): pass
def traces(): told[0]('/jax/core/compile/jaxpr_trace_duration', 0.1)
"""
SETS_ITS_ENVIRONMENT = """
import os, sys
ahead = "jax.monitoring" in sys.modules
os.environ["LIBTPU_INIT_ARGS"] = os.environ.get("LIBTPU_INIT_ARGS", "") + " --fast"
import jax, jax.monitoring
import half
print("seen", ahead, jax.seen, flush=True)
jax.monitoring.traces()
"""


def test_a_program_that_sets_its_environment_and_an_import_that_fails_ahead(
    supervise: Supervise, config: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Also the standby of a standby: the third attempt."""
    place = tmp_path / "site-packages"
    (place / "jax").mkdir(parents=True)
    init = "import os; seen = os.environ['LIBTPU_INIT_ARGS']"
    (place / "jax" / "__init__.py").write_text(init)
    (place / "jax" / "monitoring.py").write_text(_JAX)
    (place / "half.py").write_text("import sys; assert 'ahead' in vars(sys.modules['__main__'])")
    job = config("")
    command = job["trainer"]["command"]
    del command["preload"]
    command["env"] = {"PYTHONPATH": str(place)}
    Path(command["argv"][1]).write_text(SETS_ITS_ENVIRONMENT + PROGRAM + DIES)
    result = supervise(job)
    assert result.code == 0, result.log + result.err
    assert len(result.events("standby-used", kind="imports")) == 2
    firsts = [result.rank_log(attempt).split(b"\n")[0].decode() for attempt in (1, 2, 3)]
    assert firsts == ["seen False  --fast", "seen True  --fast", "seen True  --fast"]
    assert "half cannot be imported ahead" in result.event("standby-limited")["reason"]


@pytest.mark.parametrize(
    ("configured", "platform", "can_warm_up", "held", "available", "expected"),
    [
        (None, "cpu", True, GB, 4 * GB, "ready"),
        (None, "cpu", True, 3 * GB, 4 * GB, "imports"),
        (None, "cpu", False, GB, 4 * GB, "imports"),
        (None, "gpu", True, GB, 99 * GB, "imports"),
        (None, "tpu", True, GB, 99 * GB, "imports"),
        (None, None, True, GB, 99 * GB, "imports"),
        (None, "cpu", True, GB, GB // 2, None),
        ("imports", "cpu", True, GB, 99 * GB, "imports"),
        ("ready", "gpu", True, GB, GB // 2, "imports"),
        ("ready", "cpu", False, GB, 99 * GB, "imports"),
    ],
)
def test_which_kind(
    configured: str | None,
    platform: str | None,
    can_warm_up: bool,
    held: int,
    available: int,
    expected: str | None,
) -> None:
    found = choose(
        configured,
        platform=platform,
        can_warm_up=can_warm_up,
        worker_memory=held,
        free_memory=available,
        gpu_share=0.75,
    )
    assert found == expected


@pytest.mark.parametrize(
    ("configured", "share", "expected"),
    [
        (None, 0.75, "imports"),
        (None, 0.45, "ready"),
        (None, None, "imports"),
        ("ready", 0.75, "imports"),
        ("ready", 0.4, "ready"),
        ("ready", None, "ready"),
        ("imports", 0.4, "imports"),
    ],
)
def test_a_second_backend_on_a_gpu_needs_a_divided_memory(
    configured: str | None, share: float | None, expected: str
) -> None:
    found = choose(
        configured,
        platform="gpu",
        can_warm_up=True,
        worker_memory=GB,
        free_memory=99 * GB,
        gpu_share=share,
    )
    assert found == expected
