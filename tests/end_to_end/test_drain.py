"""Told to stop, whoever is told, whenever: nothing computed is lost, and nothing breaks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_training import config
from tests.running import Result, Running, Start
from tests.training.harness import assert_same_bits, final_state
from trainer.train_state import TrainState

Supervise = Callable[..., Result]

ENDLESS = 100_000


def trainer_pid(running: Running) -> int:
    (pid,) = running.wait_for_event("workers-started")["pids"]
    return int(pid)


def signal_group(running: Running, order: str) -> None:
    """SIGTERM to trainer and supervisor, as a service manager or a container runtime sends it."""
    pids = [trainer_pid(running), running.process.pid]
    for pid in pids if order == "trainer first" else reversed(pids):
        os.kill(pid, signal.SIGTERM)


def assert_drained(result: Result) -> None:
    assert result.code == 75, result.log
    assert result.attempts == 1, "never relaunched"
    assert result.summary["attempts"][0]["status"] == "DRAINED"
    assert result.summary["restarts_used"] == result.summary["preemptions_used"] == 0


def assert_saved_where_it_was(result: Result) -> int:
    """The last step that the trainer logged is the newest committed one."""
    assert result.has_event("rank-ended", rank=0, signal="SIGTERM", stage="SAVING")
    logged = re.findall(rb"^step (\d+)  loss", result.rank_log(1), re.MULTILINE)
    saved = result.summary["highest_committed_step"]
    assert saved == int(logged[-1])
    return int(saved)


both_orders = pytest.mark.parametrize("order", ["trainer first", "supervisor first"])


@both_orders
def test_sigterm_to_the_whole_group_saves_and_never_relaunches(
    start: Start, model_dir: Path, cache: dict[str, str], order: str
) -> None:
    """That the job goes on there, `test_a_stopped_job_saves_and_goes_on_where_it_was` shows."""
    running = start(config(model_dir, max_steps=ENDLESS), env=cache)
    running.wait_for_event("checkpoint-committed")  # of which step: it is heard twice a second
    signal_group(running, order)
    result = running.result()
    assert_drained(result)
    assert_saved_where_it_was(result)


@both_orders
def test_sigterm_to_the_whole_group_before_there_is_anything_to_save(
    start: Start, model_dir: Path, order: str
) -> None:
    """The trainer dies of it at once: the supervisor must not take that for a lone preemption.

    Its step is compiled meanwhile, so that stage COMPILING may last no time at all.
    """
    running = start(config(model_dir))
    running.wait_for_event("stage-entered", stage="RESTORING")
    signal_group(running, order)
    result = running.result()
    assert_drained(result)
    (ended,) = result.events("rank-ended")
    assert ended["signal"] == "SIGTERM"
    assert ended["stage"] in ("RESTORING", "COMPILING")


def test_a_drain_before_the_first_step_loses_nothing(
    start: Start, supervise: Supervise, model_dir: Path, cache: dict[str, str]
) -> None:
    short = config(model_dir, max_steps=5)
    assert supervise(short, env=cache).code == 0
    job = config(model_dir, max_steps=ENDLESS)
    for attempt, stage in ((2, "INITIALIZING"), (3, "RESTORING")):
        running = start(job)  # without a cache compiling takes its time
        running.wait_for_event("stage-entered", attempt=attempt, stage=stage)
        running.signal(signal.SIGTERM)
        stopped = running.result()
        assert stopped.code == 75
        assert stopped.has_event("rank-ended", attempt=attempt, rank=0, signal="SIGTERM")
        assert stopped.summary["highest_committed_step"] == 5
    again = supervise(job, "--set", "trainer.init.loop.max_steps=7", env=cache)
    assert again.code == 0
    assert again.has_event("state-restored", step=5)
    assert again.attempts == 4


@pytest.mark.slow
def test_a_drain_breaks_an_evaluation_off_and_saves(
    start: Start, supervise: Supervise, model_dir: Path, unoptimised: dict[str, str]
) -> None:
    """The first evaluation follows step 3, the second the last step. They are long enough to be
    met, and the job is not done without them."""
    job = config(model_dir, max_steps=6)
    job["trainer"]["fit"]["validation"] |= {"every": 3, "steps": 2000}
    evaluated = list[int]()
    for attempt, step in ((1, 3), (2, 6)):
        running = start(job, env=unoptimised)
        running.wait_for(f"step {step}  loss")
        running.signal(signal.SIGTERM)
        result = running.result()
        assert result.code == 75, result.log
        assert result.attempts == attempt
        assert result.summary["highest_committed_step"] == step
        assert f"step {step}  validation stops after".encode() in result.rank_log(attempt)
        evaluated += [event["step"] for event in result.events("evaluated")]
    result = supervise(job, env=unoptimised)
    assert result.code == 0, result.log
    assert result.attempts == 3
    assert evaluated == [3]
    assert [event["step"] for event in result.events("evaluated")] == [6]
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "evaluation_loss" in line] == [3, 6]
    assert supervise(job, env=unoptimised).attempts == 3, "it is complete"


def test_a_hail_of_sigterms_during_the_save_does_not_corrupt_it(
    start: Start, model_dir: Path, cache: dict[str, str], undisturbed: TrainState
) -> None:
    struck = config(model_dir, faults=[{"step": 7, "signal": "SIGTERM"}])
    running = start(struck, env=cache)
    pid = trainer_pid(running)
    running.wait_for("step 7 ")  # told once it is complete, with which the save begins
    sent = hail(pid)
    result = running.result()
    assert result.code == 0, result.log
    assert sent > 1
    assert result.has_event("rank-ended", rank=0, signal="SIGTERM", stage="SAVING")
    assert result.event("state-restored", attempt=2)["step"] in (7, 8)
    assert_same_bits(final_state(struck, model_dir), undisturbed)


def hail(pid: int) -> int:
    """Send SIGTERM until nobody is there any more; how many were sent. Up to a thousand a second:
    without a pause, most of the processor would be ours."""
    sent, end = 0, time.monotonic() + 30
    while time.monotonic() < end:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            break
        sent += 1
        time.sleep(0.001)
    return sent


def test_a_drain_under_jax_distributed_saves_and_dies_of_sigterm(
    start: Start, model_dir: Path, cache: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    job: dict[str, Any] = config(model_dir, max_steps=ENDLESS)
    running = start(job, env={**cache, "JAX_COORDINATOR_ADDRESS": address})
    running.wait_for_event("checkpoint-committed")  # of which step: it is heard twice a second
    signal_group(running, "trainer first")
    result = running.result()
    assert_drained(result)
    assert_saved_where_it_was(result)
    assert b"SIGTERM caught" in result.rank_log(1), "jax.distributed took the signal"
