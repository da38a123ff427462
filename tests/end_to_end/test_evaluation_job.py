"""A job that only evaluates, under a real supervisor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from tests.end_to_end.test_kill_matrix import measured
from tests.running import Result
from tests.training.harness import tiny

Supervise = Callable[..., Result]

FIELDS = {"sequence_length": 16, "paths": "stdlib/json/*.py"}


def training(model_dir: Path) -> dict[str, Any]:
    trainer = tiny(model_dir, max_steps=4)["trainer"]
    trainer["init"] |= usual(model_dir)
    trainer["fit"]["validation"] = {"every": 4, "steps": 12, "dataloader": FIELDS}
    return {"trainer": trainer}


def evaluation(model_dir: Path, of: Path | None, *faults: dict[str, Any]) -> dict[str, Any]:
    """The validation of `training` alone, on the newest checkpoint `of` it; None: on new
    weights."""
    trainer = training(model_dir)["trainer"]
    del trainer["init"]["optimizer"], trainer["fit"]["train_dataloader"]
    del trainer["init"]["loop"]["max_steps"], trainer["fit"]["validation"]["every"]
    if of is not None:
        trainer["start_from"] = {"directory": str(of / "checkpoints")}
    trainer["faults"] = list(faults)
    return {"trainer": trainer}


def usual(model_dir: Path) -> dict[str, Any]:
    return {
        "model_dir": str(model_dir),
        "devices": {"platform": "cpu", "count": 1},
        "checkpoint": {"every": 4, "keep": 2},
        "autorestart": {
            "max_num_restarts": 3,
            "backoff": {"first": 0.05, "max": 0.2},
            "standby": "off",
        },
    }


def test_it_gives_the_loss_that_training_measured_though_it_is_killed(
    supervise: Supervise, tmp_path: Path, cache: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    trained, place = tmp_path / "trained", tmp_path / "evaluated"
    assert supervise(training(trained), env=cache).code == 0
    (expected,) = measured(trained, "evaluation_loss").values()
    ends = [(2, "SIGKILL"), (5, "SIGTERM"), (7, "SIGKILL"), (11, "SIGKILL")]
    faults = [{"step": step, "signal": signal} for step, signal in ends]
    job = evaluation(place, trained, *faults)
    result = replace(supervise(job, env=cache), model_dir=place)
    assert result.code == 0, result.log
    assert result.event("job-ended")["status"] == "SUCCEEDED"
    assert result.has_event("evaluated", step=12)
    starts = [each["starting_step"] for each in result.summary["attempts"]]
    assert starts[:3] == [0, 0, 5]
    assert starts[3] >= 5
    (found,) = measured(place, "evaluation_loss").values()
    assert found["evaluation_loss"] == expected["evaluation_loss"]
    assert list(measured(place, "loss")) == list(range(1, 13))
    assert not (place / "checkpoints" / "12" / "params").exists()

    assert main(["replay", str(place), "--step", "2"]) == 64
    assert "only evaluates (phase 'phase1'), and no step of training" in capfd.readouterr().err

    shutil.rmtree(trained / "checkpoints" / "4" / "params")
    again = supervise(job, env=cache)
    assert again.code == 0, "a complete one evaluates nothing"


@pytest.mark.slow
def test_it_refuses_other_weights_and_other_batches(
    supervise: Supervise, tmp_path: Path, unoptimised: dict[str, str]
) -> None:
    place = tmp_path / "evaluated"
    job = evaluation(place, None, {"step": 5, "signal": "SIGTERM"}, {"step": 6, "exit_code": 3})
    job["trainer"]["init"]["autorestart"] |= {"max_num_restarts": 0, "max_num_preemptions": 1}
    stopped = replace(supervise(job, env=unoptimised), model_dir=place)
    assert stopped.code == 76, stopped.log
    for section, key, value, why in (
        ("init", "seed", 3, "it is about other weights (fingerprint "),
        ("fit", "validation", {"steps": 11, "dataloader": FIELDS}, "it is about other batches"),
    ):
        other = json.loads(json.dumps(job))
        other["trainer"][section][key] = value
        refused = supervise(other, env=unoptimised)
        assert refused.code == 70, refused.log
        failed = refused.event("attempt-failed")
        assert failed["code"] == "checkpoint-structure"
        assert why in failed["root_cause"]
    done = supervise(job, env=unoptimised)
    assert done.code == 0, done.log
