"""Simulated devices that are lost, compute wrongly and come back, under a real supervisor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from supervisor.protocol import simulated
from tests.end_to_end.test_snapshots import trainer_of
from tests.end_to_end.test_training import config
from tests.running import Result, Start, eventually
from tests.training.harness import assert_same_bits, final_state

_PATIENCE = 300.0
"""Seconds: it compiles for three rungs."""

Supervise = Callable[..., Result]


@pytest.mark.slow
def test_it_shrinks_on_evidence_stays_out_of_quarantine_and_grows_back(
    start: Start, tmp_path: Path, cache: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """8 devices -> 4, because one computes wrongly -> 2, because four are lost -> 8."""
    job = config(tmp_path / "run", faults=[{"step": 4, "device_wrong_result": "5"}])
    init = job["trainer"]["init"]
    init["devices"]["count"] = 8
    init["autorestart"] |= {"min_num_devices": 2, "standby": "off", "ladder": [8, 4, 2]}
    init["loop"]["max_steps"] = 100_000
    running = start(job, env=cache)
    file = running.model_dir / simulated.FILE

    text = running.wait_for("starting attempt 2")
    assert "device 5: simulated: a wrong result of a matrix product" in text
    assert "in quarantine for 60 min" in text
    assert "the job shrinks from 8 to 4 devices" in text
    assert "on 4 of 8 devices (devices 0, 1, 2, 3)" in text
    assert "its devices are to blame: nothing is charged" in text

    simulated.return_(file, "5")
    running.wait_for("devices found: 4")
    simulated.lose(file, "1", "2", "6", "7")
    text = running.wait_for("starting attempt 3")
    assert "device 1: simulated: not found" in text
    assert "the job shrinks from 4 to 2 devices" in text
    assert "on 2 of 8 devices (devices 0, 3)" in text

    assert main(["status", str(running.model_dir)]) == 0
    told = capfd.readouterr().out
    assert f"supervisor: supervisor {running.process.pid} on " in told
    assert "rung: 2 of 8 devices (devices 0, 3)" in told
    assert "device 5: simulated: a wrong result" in told
    assert main(["quarantine", "clear", str(running.model_dir), "4"]) == 64
    assert "'4' is not in quarantine; in quarantine: 5" in capfd.readouterr().err
    assert main(["quarantine", "clear", str(running.model_dir), "5"]) == 0
    running.wait_for("quarantine cleared by a person: 5")
    capfd.readouterr()
    assert main(["quarantine", "list", str(running.model_dir)]) == 0
    assert capfd.readouterr().out == "nothing is in quarantine\n"

    simulated.return_(file, "1", "2", "6", "7")
    running.wait_for("output in attempts/0003")
    os.kill(trainer_of(running, 3), signal.SIGKILL)
    text = running.wait_for("starting attempt 4")
    assert "the job grows from 2 to 8 devices" in text
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    devices = [record["num_devices"] for record in result.summary["attempts"]]
    assert devices == [8, 4, 2, 8]


@pytest.mark.slow
def test_too_few_devices_are_waited_for_and_end_the_job_resumable(
    supervise: Supervise, tmp_path: Path, cache: dict[str, str]
) -> None:
    job = config(tmp_path / "run", faults=[{"step": 4, "device_lost": "0"}])
    restart = job["trainer"]["init"]["autorestart"]
    restart |= {"standby": "off", "ladder": [8], "wait_for_capacity": 0}
    job["trainer"]["init"]["devices"]["count"] = 8
    result = supervise(job, env=cache)
    assert result.code == 69, result.log
    assert "7 of 8 devices are usable, and the smallest rung needs 8" in result.log
    assert result.summary["restarts_used"] == 0

    simulated.return_(result.model_dir / simulated.FILE, "0")
    again = supervise(job, env=cache)
    assert again.code == 0, again.log


@pytest.mark.slow
def test_growing_back_at_a_checkpoint_costs_nothing(
    start: Start, tmp_path: Path, cache: dict[str, str]
) -> None:
    job = config(tmp_path / "run", faults=[{"step": 4, "device_lost": "3"}])
    init = job["trainer"]["init"]
    init["devices"]["count"] = 4
    init["autorestart"] |= {
        "standby": "off",
        "ladder": [4, 2],
        "regrow": "at_checkpoint",
        "regrow_after": 0,
    }
    init["loop"]["max_steps"] = 100_000
    running = start(job, env=cache)
    running.wait_for("starting attempt 2")
    simulated.return_(running.model_dir / simulated.FILE, "3")
    text = running.wait_for("starting attempt 3", timeout=120.0)
    assert "whether more than 2 devices can be used again" in text
    assert "a larger rung is there again" in text
    assert "a larger rung has been well for a while, and the next attempt uses it" in text
    assert "it made way for a larger rung: nothing is charged" in text
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert result.summary["restarts_used"] == 0
    ends = [record["status"] for record in result.summary["attempts"]]
    assert ends == ["FAILED", "MADE_WAY", "DRAINED"], result.log
    assert result.log.count("root cause: ") == 1, result.log  # told of the first alone
    assert eventually(lambda: result.summary["attempts"][-1]["num_devices"] == 4)


@pytest.mark.slow
def test_down_and_up_the_ladder_it_ends_with_the_bits_of_an_undisturbed_run(
    start: Start, tmp_path: Path, cache: dict[str, str]
) -> None:
    """With matrices so large that Eigen would cut their products by the number of threads."""
    whole, struck = bitwise(tmp_path / "whole"), bitwise(tmp_path / "struck")
    struck["trainer"]["faults"] = [
        {"step": 6, "device_lost": "7"},
        {"step": 9, "device_lost": "0"},
        {"step": 12, "device_returns": "7"},
        {"step": 12, "device_returns": "0"},
        {"step": 13, "signal": "SIGKILL"},
    ]
    assert start(whole, env=cache).result(_PATIENCE).code == 0
    result = replace(start(struck, env=cache).result(_PATIENCE), model_dir=tmp_path / "struck")
    assert result.code == 0, result.log
    devices = [record["num_devices"] for record in result.summary["attempts"]]
    assert devices == [8, 4, 4, 8]
    assert result.log.count("nothing is charged") == 2
    assert_same_bits(
        final_state(struck, tmp_path / "struck"), final_state(whole, tmp_path / "whole")
    )


def bitwise(model_dir: Path) -> dict[str, Any]:
    job = config(model_dir, 8, global_batch_size=16)
    init = job["trainer"]["init"]
    init["determinism"] = {"elastic": "bitwise"}
    init["model"] |= {"hidden_size": 128, "num_layers": 1}
    init["autorestart"]["ladder"] = [8, 4, 2]
    job["trainer"]["fit"]["train_dataloader"]["sequence_length"] = 128
    return job
