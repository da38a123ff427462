"""Two trainers of one model: they are preempted, killed and resumed as one, and end with the same
bits."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from supervisor.protocol.committed import committed_steps
from tests.running import Running, Start, eventually
from tests.training.harness import assert_same_bits, final_state
from tests.training.test_retries import writes_fail
from trainer.manifest import MANIFEST

from .test_replay import replay
from .test_training import config

STEPS = 44
STOPPED = 38
SNAPSHOT = 28


def two_workers(model_dir: Path, *faults: dict[str, Any]) -> dict[str, Any]:
    job = config(model_dir, 4, list(faults), max_steps=STEPS)
    job["trainer"]["init"] |= {"workers": 2, "checkpoint": {"every": 25, "keep": 9}}
    job["trainer"]["fit"]["validation"]["every"] = 20
    return job


@pytest.mark.slow
def test_preempted_and_killed_as_one_they_end_with_the_same_bits(
    start: Start, model_dir: Path, tmp_path: Path, unoptimised: dict[str, str]
) -> None:
    whole = two_workers(tmp_path / "whole")
    assert start(whole, env=unoptimised).result(120).code == 0

    told = {"step": 8, "signal": "SIGTERM", "rank": 1}
    stopped = {"step": STOPPED, "signal": "SIGSTOP", "rank": 1}
    struck = two_workers(model_dir, told, stopped)
    init = struck["trainer"]["init"]
    init["autorestart"]["standby"] = "imports"
    init["checkpoint"]["snapshot"] = {"every": 14}
    running = start(struck, env=unoptimised)
    (_, pid) = running.wait_for_event("workers-started", 120, attempt=2)["pids"]

    def are_ready() -> bool:
        running.listen(0.1)
        return _standbys(running) == 2

    assert eventually(are_ready, 120)
    assert eventually(lambda: "T (stopped)" in Path(f"/proc/{pid}/status").read_text(), 120)
    os.kill(pid, signal.SIGKILL)
    result = running.result(120)

    assert result.code == 0, result.log
    first, second, third = result.summary["attempts"]
    assert (first["failure"]["rule"], second["failure"]["rule"]) == ("sigterm", "sigkill")
    assert second["failure"]["rank"] == 1
    for rank in (0, 1):
        assert result.has_event("rank-ended", attempt=1, rank=rank, signal="SIGTERM")
    assert second["starting_step"] == first["newest_committed_step"] >= 8, "not all saved"
    assert (third["starting_step"], third["from_snapshot"]) == (SNAPSHOT, True)
    assert result.has_event("standby-used", kind="imports", number=2)
    for step, path in committed_steps(model_dir / "checkpoints"):
        assert (path / MANIFEST).exists(), step
    assert_same_bits(
        final_state(struck, model_dir, STEPS), final_state(whole, tmp_path / "whole", STEPS)
    )
    done = replay(unoptimised, tmp_path / "whole", "--step", "24")
    printed = done.stdout.splitlines()
    assert any(re.match(r"steps 1 to 23: .*\(each as recorded\)$", line) for line in printed), done
    assert any(re.match(r"step 24: .*\(as recorded\)$", line) for line in printed), done


@pytest.mark.slow
def test_stopped_in_an_evaluation_they_go_on_with_it_as_one(
    start: Start, model_dir: Path, tmp_path: Path, unoptimised: dict[str, str]
) -> None:
    whole = two_workers(tmp_path / "whole")
    told = {"stage": "EVALUATING", "signal": "SIGTERM", "rank": 1}
    struck = two_workers(model_dir, told, {"step": 23, "signal": "SIGKILL", "rank": 0})
    for each in (whole, struck):  # long enough for all to hear of the signal
        each["trainer"]["fit"]["validation"]["steps"] = 300
    assert start(whole, env=unoptimised).result(120).code == 0
    result = start(struck, env=unoptimised).result(120)
    assert result.code == 0, result.log
    assert [each["starting_step"] for each in result.summary["attempts"]] == [0, 20, 20]
    assert b"validation stops after" in result.rank_log(1)
    assert _evaluations(model_dir) == _evaluations(tmp_path / "whole")
    assert_same_bits(
        final_state(struck, model_dir, STEPS), final_state(whole, tmp_path / "whole", STEPS)
    )


def _evaluations(model_dir: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return [(one["step"], one["evaluation_loss"]) for one in lines if "evaluation_loss" in one]


def _standbys(running: Running) -> int:
    """How many have become ready since the second attempt began."""
    told = [each["event"] for each in running.events("attempt-started", "standby-ready")]
    first = told.index("attempt-started")
    return told[told.index("attempt-started", first + 1) :].count("standby-ready")


@pytest.mark.slow
def test_a_host_that_keeps_the_other_waiting_is_named(
    start: Start, model_dir: Path, unoptimised: dict[str, str]
) -> None:
    job = two_workers(model_dir, {"step": 2, "slow_input": 0.5, "rank": 1})
    result = start(job, env=unoptimised).result(180)
    assert result.code == 0, result.log
    told = result.event("straggler")
    assert (told["rank"], told["host"]) == (1, "host1")
    assert told["seconds"] > 0.5 > told["peers"]
    assert len(result.events("straggler")) == 1


@pytest.mark.slow
def test_the_worker_whose_storage_fails_is_blamed_and_not_the_one_that_heard_of_it(
    start: Start, model_dir: Path, tmp_path: Path, unoptimised: dict[str, str]
) -> None:
    job = two_workers(model_dir)
    job["trainer"]["init"]["checkpoint"]["every"] = 5
    faults = tmp_path / "faults"
    faults.mkdir()
    failing = writes_fail(faults, 1, [5, 10, 15, 20], errno.EIO)
    result = start(job, env=unoptimised | {"PYTHONPATH": failing}).result(200)
    failures = [one["failure"] for one in result.summary["attempts"] if one["failure"]]
    assert failures, result.log
    assert {one["rank"] for one in failures} == {1}, "process 0 has only heard of it"
    assert all("Input/output error" in one["root_cause"] for one in failures)
