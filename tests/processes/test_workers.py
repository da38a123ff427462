"""Several workers under one supervisor: they start, fail, stop and end as one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result, Start

Supervise = Callable[..., Result]

PROGRAM = """
import os, signal, subprocess, sys, time
from pathlib import Path
from supervisor.protocol.reporter import Reporter

model_dir = Path(sys.argv[1])
rank, size = int(os.environ["SUPERVISE_RANK"]), int(os.environ["SUPERVISE_WORLD_SIZE"])
attempt = int(os.environ["SUPERVISE_ATTEMPT"])
reporter = Reporter.connect()

def until(condition):
    while not condition():
        time.sleep(0.001)

def log():
    return "".join(path.read_text() for path in model_dir.glob("*_restartable/run.log"))

def marks(name):
    return list(model_dir.glob(name + "-*"))

def mark(name):
    (model_dir / f"{name}-{rank}").touch()

"""

FAILS = """
records = Path(os.environ["SUPERVISE_FAILURE_FILE"]).parent
if attempt == 1:
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    (model_dir / f"child-{child.pid}").touch()
    until(lambda: len(marks("child")) == size)
    if rank == 1:
        raise RuntimeError("bad luck")
    until((records / "rank1.failure.json").exists)
    if rank == 0:
        raise RuntimeError("UNAVAILABLE: Connection closed by peer")
    signal.pause()
for path in marks("child"):
    if Path("/proc", path.name.partition("-")[2]).exists():
        print("a child of the last attempt lives")
print(rank, "of", size, os.environ["JAX_PROCESS_ID"], os.environ["JAX_NUM_PROCESSES"])
print(os.environ["JAX_COORDINATOR_ADDRESS"])
"""

STOPS = """
def save(*_):
    os.write(1, b"saved %d\\n" % rank)  # a print may have been interrupted
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
mark("ready")
until(lambda: len(marks("ready")) == size)
os.write(1, b"all are ready\\n")
while True:
    signal.pause()
"""

ENDS = """
from supervisor.protocol.messages import Stage
reporter.stage(Stage.TRAINING)
if rank == 1:
    reporter.step(1000)
    reporter.notice("an odd thing")
    mark("told")
    until(lambda: "rank 0 ended" in log())
    reporter.stage(Stage.TRAINING)
    reporter.step(1007)
else:
    until(lambda: marks("told") and "an odd thing" in log())
    reporter.step(3)
"""

HANGS = """
from supervisor.protocol.messages import Stage
reporter.stage(Stage.TRAINING)
while attempt == 1:
    if rank == 0:
        signal.pause()
    reporter.step(1)
    time.sleep(0.01)
"""

LINGERS = """
import atexit
if attempt == 1:
    if rank == 1:
        atexit.register(signal.pause)  # as jax.distributed waits for the others
        raise RuntimeError("bad luck")
    signal.pause()
"""


@pytest.fixture
def config(tmp_path: Path, model_dir: Path) -> Callable[..., dict[str, Any]]:
    def make(what: str, workers: int, **command: Any) -> dict[str, Any]:
        program = tmp_path / "program.py"
        program.write_text(PROGRAM + what)
        restart = {"max_num_restarts": 1, "backoff": {"first": 0.01}, "standby": "off"}
        return {
            "trainer": {
                "init": {
                    "model_dir": str(model_dir),
                    "devices": {"platform": "cpu", "count": workers},
                    "workers": workers,
                    "autorestart": restart,
                },
                "command": {"argv": [sys.executable, str(program), "{model_dir}"], **command},
            }
        }

    return make


def output(result: Result, attempt: int, rank: int) -> list[str]:
    (path,) = result.model_dir.glob(f"*_restartable/attempts/{attempt:04d}/rank{rank}.log")
    return path.read_text().splitlines()


def test_one_fails_all_are_gone_and_the_first_cause_is_charged(
    supervise: Supervise, config: Callable[..., dict[str, Any]]
) -> None:
    result = supervise(config(FAILS, 3))
    assert result.code == 0, result.log
    assert result.attempts == 2
    failure = result.summary["attempts"][0]["failure"]
    assert (failure["rank"], failure["root_cause"]) == (1, "RuntimeError: bad luck")
    assert result.has_event("rank-ended", level="warning", rank=1, code=1)
    outputs = [output(result, 2, rank) for rank in range(3)]
    assert [lines[0] for lines in outputs] == ["0 of 3 0 3", "1 of 3 1 3", "2 of 3 2 3"]
    assert len({lines[1] for lines in outputs}) == 1, "they do not meet"
    assert not [told for told in result.events("output") if told["text"].startswith("2 of 3")]


def test_one_that_failed_and_does_not_end_is_ended(
    supervise: Supervise, config: Callable[..., dict[str, Any]]
) -> None:
    result = supervise(config(LINGERS, 2))
    assert result.code == 0, result.log
    assert result.has_event("rank-killed", level="warning", rank=1)
    failure = result.summary["attempts"][0]["failure"]
    assert (failure["rank"], failure["root_cause"]) == (1, "RuntimeError: bad luck")


def test_a_stop_reaches_every_worker(start: Start, config: Callable[..., dict[str, Any]]) -> None:
    running = start(config(STOPS, 2))
    running.wait_for("all are ready")
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    for rank in (0, 1):
        assert output(result, 1, rank)[-1].endswith(f"saved {rank}")


def test_the_lowest_rank_that_lives_speaks_for_all(
    supervise: Supervise, config: Callable[..., dict[str, Any]]
) -> None:
    result = supervise(config(ENDS, 2, success={"step": 1007}))
    assert result.code == 0, result.log
    assert result.attempts == 1, "one that has done its part ends alone"
    assert result.has_event("rank-ended", rank=0, code=0, stage="TRAINING", step=3)
    assert result.has_event("rank-ended", rank=1, code=0, stage="TRAINING", step=1007)
    assert result.event("worker-notice", level="warning", rank=1)["text"].endswith("an odd thing")


def test_the_silence_of_the_speaker_is_a_hang_and_every_rank_leaves_its_stacks(
    supervise: Supervise, config: Callable[..., dict[str, Any]]
) -> None:
    job = config(HANGS, 2)
    job["trainer"]["init"]["autorestart"] |= {"deadlines": {"TRAINING": 1}, "grace_period": 1}
    result = supervise(job)
    assert result.code == 0, result.log
    assert result.summary["attempts"][0]["failure"]["rule"] == "hang"
    for rank in (0, 1):
        assert result.has_event("stacks-dumped", rank=rank)
        (stacks,) = result.model_dir.glob(f"*_restartable/attempts/0001/rank{rank}.stacks.txt")
        assert "program.py" in stacks.read_text()
    compared = result.event("stacks-compared")
    assert [place.partition(": ")[0] for place in compared["places"]] == ["0", "1"]
    assert all("program.py:" in place for place in compared["places"])


def test_where_not_all_can_be_started_none_stays(
    supervise: Supervise, config: Callable[..., dict[str, Any]]
) -> None:
    """The descriptors are used up at some rank or other."""
    result = supervise(config(STOPS, 40), prefix=["prlimit", "--nofile=60"])
    assert result.code == 76, result.log + result.err
    failed = result.events("attempt-failed", cause="the command cannot be started")[-1]
    assert "Too many open files" in failed["root_cause"]
    assert not result.has_event("rank-ended", rank=0)
