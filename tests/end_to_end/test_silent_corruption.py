"""A simulated device that computes wrongly in silence, under a real supervisor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from tests.end_to_end.test_kill_matrix import measured
from tests.end_to_end.test_ladder import bitwise
from tests.end_to_end.test_replay import replay
from tests.once import once
from tests.running import Result, starting
from tests.training.harness import assert_same_bits, final_state

Supervise = Callable[..., Result]


def checked(model_dir: Path, *faults: dict[str, Any]) -> dict[str, Any]:
    """A job that checks each fourth step, and saves each third."""
    job = bitwise(model_dir)
    init = job["trainer"]["init"]
    init["model"] |= {"hidden_size": 16, "mlp_size": 32}
    init["loop"] |= {"max_steps": 14, "global_batch_size": 4, "micro_batch_size": 1}
    init["devices"]["count"] = 4
    init["checkpoint"] = {"every": 3, "keep": 1}
    init["autorestart"] |= {"ladder": [4, 2], "standby": "off", "prefetch": False}
    init["sdc"] = {"every": 4}
    job["trainer"]["fit"]["train_dataloader"]["sequence_length"] = 16
    job["trainer"]["faults"] = list(faults)
    return job


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: dict[str, str]) -> Path:
    """The model_dir of such a job of one worker where nothing strikes it."""

    def run(folder: Path) -> None:
        with starting(folder) as start:
            assert start(checked(folder / "run"), env=cache).result().code == 0

    return once(tmp_path_factory, "undisturbed-and-checked", run) / "run"


def assert_bits_of(whole: Path, struck: dict[str, Any], model_dir: Path) -> None:
    """The job in `model_dir` has measured and ended with the same as the undisturbed one."""
    assert measured(model_dir, "loss") == measured(whole, "loss")
    assert_same_bits(final_state(struck, model_dir, 14), final_state(checked(whole), whole, 14))


@pytest.mark.slow
def test_a_device_that_flips_bits_is_found_and_what_it_spoiled_is_computed_again(
    supervise: Supervise,
    tmp_path: Path,
    cache: dict[str, str],
    whole: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Slow for XLA to optimise the programs: else another rung gives other bits. Steps 6 and 7 are
    wrong, the check of step 8 fails, and step 6 is saved: back to step 3."""
    struck = checked(tmp_path / "struck", {"step": 5, "device_flips_bits": "2"})
    result = replace(supervise(struck, env=cache), model_dir=tmp_path / "struck")
    assert result.code == 0, result.log

    told = result.event("silent-corruption")
    assert told["step"] == 8
    assert "has computed wrong gradients (simulated)" in told["text"]
    bad = result.event("device-bad")
    assert (bad["unit"], bad["found"]) == ("2", True)
    assert bad["reason"] == "simulated: wrong gradients of step 8"
    assert [each["step"] for each in result.events("checkpoint-not-trusted")] == [6]
    ended = result.event("attempt-failed")
    assert ended["code"] == "silent-corruption"
    again = result.event("attempt-started", attempt=2)
    assert "not the program, but a device: nothing is charged" in again["reason"]
    assert (again["num_devices"], "2" in again["units"]) == (2, False)
    assert result.summary["restarts_used"] == 0
    assert "Steps 5 to 8 are suspect" in ended["text"]
    done = replay(cache, tmp_path / "struck")
    assert done.stdout.startswith("replays steps "), "the job has succeeded since"
    assert result.summary["attempts"][1]["starting_step"] == 3
    assert_bits_of(whole, struck, result.model_dir)
    assert main(["status", str(result.model_dir)]) == 0
    assert "device 2: simulated: wrong gradients of step 8" in capfd.readouterr().out
    assert main(["explain", str(result.model_dir), "1"]) == 0
    explained = capfd.readouterr().out
    assert "a device computed wrongly in silence" in explained
    assert "Have the device in the message looked at" in explained


@pytest.mark.slow
def test_of_several_workers_the_host_with_the_wrong_device_is_found(
    supervise: Supervise, tmp_path: Path, cache: dict[str, str], whole: Path
) -> None:
    """Device 3 is the second one of worker 1, which stands for a host. The check of step 4 passed,
    and that of step 8 fails: back to step 3, although step 6 is saved. How many workers there are
    changes no bit either."""
    struck = checked(tmp_path / "struck", {"step": 5, "device_flips_bits": "3"})
    struck["trainer"]["init"]["workers"] = 2
    result = replace(supervise(struck, env=cache), model_dir=tmp_path / "struck")
    assert result.code == 0, result.log
    bad = result.event("device-bad")
    assert (bad["unit"], bad["found"]) == ("host1", True)
    assert bad["reason"] == "its device 1: simulated: wrong gradients of step 8"
    assert {each["step"] for each in result.events("checkpoint-not-trusted")} == {6}
    again = result.event("attempt-started", attempt=2)
    assert "not the program, but a host: nothing is charged" in again["reason"]
    assert (again["num_devices"], again["units"]) == (2, ["host0"])
    assert result.summary["attempts"][1]["starting_step"] == 3
    assert result.summary["restarts_used"] == 0
    assert_bits_of(whole, struck, result.model_dir)
