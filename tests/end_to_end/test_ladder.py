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
    start: Start, tmp_path: Path, unoptimised: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """8 devices -> 4, because one computes wrongly -> 2, because four are lost -> 8."""
    job = config(tmp_path / "run", faults=[{"step": 4, "device_wrong_result": "5"}])
    init = job["trainer"]["init"]
    init["devices"]["count"] = 8
    init["autorestart"] |= {"min_num_devices": 2, "standby": "off", "ladder": [8, 4, 2]}
    init["loop"]["max_steps"] = 100_000
    running = start(job, env=unoptimised)
    file = running.model_dir / simulated.FILE

    second = running.wait_for_event("attempt-started", attempt=2)
    assert (second["num_devices"], second["units"]) == (4, ["0", "1", "2", "3"])
    assert "not the program, but its devices: nothing is charged" in second["reason"]
    (bad,) = running.events("device-bad", unit="5", found=True)
    assert bad["reason"].startswith("simulated: a wrong result of a matrix product")
    assert running.has_event("rung-changed", before=8, num_devices=4)

    simulated.mark_healthy(file, "5")
    running.wait_for_event("devices-found", attempt=2, num_devices=4)
    simulated.mark_lost(file, "1", "2", "6", "7")
    third = running.wait_for_event("attempt-started", attempt=3)
    assert (third["num_devices"], third["units"]) == (2, ["0", "3"])
    assert running.has_event("device-bad", unit="1", reason="simulated: not found", found=False)
    assert running.has_event("rung-changed", before=4, num_devices=2)

    assert main(["status", str(running.model_dir)]) == 0
    told = capfd.readouterr().out
    assert f"supervisor: pid {running.process.pid} on " in told
    assert "rung: 2 of 8 devices (devices 0, 3)" in told
    assert "device 5: simulated: a wrong result" in told
    assert main(["quarantine", "clear", str(running.model_dir), "4"]) == 64
    assert "'4' is not in quarantine; in quarantine: 5" in capfd.readouterr().err
    assert main(["quarantine", "clear", str(running.model_dir), "5"]) == 0
    running.wait_for_event("quarantine-cleared", units=["5"])
    capfd.readouterr()
    assert main(["quarantine", "list", str(running.model_dir)]) == 0
    assert capfd.readouterr().out == "nothing is in quarantine\n"

    simulated.mark_healthy(file, "1", "2", "6", "7")
    os.kill(trainer_of(running, 3), signal.SIGKILL)
    running.wait_for_event("attempt-started", attempt=4)
    assert running.has_event("rung-changed", before=2, num_devices=8)
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    devices = [record["num_devices"] for record in result.summary["attempts"]]
    assert devices == [8, 4, 2, 8]


@pytest.mark.slow
def test_too_few_devices_are_waited_for_and_end_the_job_resumable(
    supervise: Supervise, tmp_path: Path, unoptimised: dict[str, str]
) -> None:
    job = config(tmp_path / "run", faults=[{"step": 4, "device_lost": "0"}])
    restart = job["trainer"]["init"]["autorestart"]
    restart |= {"standby": "off", "ladder": [8], "wait_for_capacity": 0}
    job["trainer"]["init"]["devices"]["count"] = 8
    result = supervise(job, env=unoptimised)
    assert result.code == 69, result.log
    why = "7 of 8 devices are usable, and the smallest rung needs 8"
    assert why in result.event("job-ended")["reason"]
    assert result.summary["restarts_used"] == 0

    simulated.mark_healthy(result.model_dir / simulated.FILE, "0")
    again = supervise(job, env=unoptimised)
    assert again.code == 0, again.log


@pytest.mark.slow
def test_growing_back_at_a_checkpoint_costs_nothing(
    start: Start, tmp_path: Path, unoptimised: dict[str, str]
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
    running = start(job, env=unoptimised)
    running.wait_for_event("attempt-started", attempt=2)
    simulated.mark_healthy(running.model_dir / simulated.FILE, "3")
    third = running.wait_for_event("attempt-started", 120.0, attempt=3)
    assert "it made way for a larger rung: nothing is charged" in third["reason"]
    looked = [told["reason"] for told in running.events("devices-probing")]
    assert any("whether more than 2 devices can be used again" in each for each in looked)
    assert running.has_event("larger-rung-seen")
    (stopped,) = running.events("workers-told-to-stop")
    assert "a larger rung has been well for a while" in stopped["reason"]
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75, result.log
    assert result.summary["restarts_used"] == 0
    ends = [record["status"] for record in result.summary["attempts"]]
    assert ends == ["FAILED", "MADE_WAY", "DRAINED"], result.log
    assert len(result.events("attempt-failed")) == 1, "told of the first alone"
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
    reasons = [told["reason"] for told in result.events("attempt-started")]
    assert len([each for each in reasons if "nothing is charged" in each]) == 2
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
