"""The whole thing: our trainer, supervised, struck by real faults, ends with the same bits."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result, Start
from tests.training.harness import assert_same_bits, final_state, tiny
from trainer.train_state import TrainState

Supervise = Callable[..., Result]


def config(
    model_dir: Path, num_devices: int = 1, faults: list[dict[str, Any]] | None = None, **loop: int
) -> dict[str, Any]:
    """A supervised job of the tiny trainer: 17 steps, a checkpoint every 5, only cold starts."""
    trainer = tiny(model_dir, **loop)["trainer"]
    trainer["init"] |= {
        "model_dir": str(model_dir),
        "devices": {"platform": "cpu", "count": num_devices},
        "checkpoint": {"every": 5, "keep": 2},
        "autorestart": {
            "max_num_restarts": 2,
            "backoff": {"first": 0.05},
            "standby": "off",
            "prefetch": False,
        },
    }
    trainer["faults"] = faults or []
    return {"trainer": trainer}


def killed_three_times(
    supervise: Supervise, model_dir: Path, cache: dict[str, str], num_devices: int
) -> TrainState:
    """What a job ends with that is killed at three of its steps."""
    steps = sorted(random.Random(num_devices).sample(range(1, 17), 3))
    faults = [{"step": step, "signal": "SIGKILL"} for step in steps]
    struck = config(model_dir, num_devices, faults)
    struck["trainer"]["init"]["autorestart"]["max_num_restarts"] = 3
    result = supervise(struck, env=cache)
    assert result.code == 0, result.log
    assert len(result.events("drill-fired")) == 3
    assert len(result.events("attempt-started")) == 4
    check_recoveries(result)
    return final_state(struck, model_dir)


def test_killed_at_any_step_it_ends_with_the_same_bits(
    supervise: Supervise, model_dir: Path, cache: dict[str, str], undisturbed: TrainState
) -> None:
    assert_same_bits(killed_three_times(supervise, model_dir, cache, 1), undisturbed)


@pytest.mark.slow
def test_killed_at_any_step_on_four_devices_it_ends_with_the_same_bits(
    supervise: Supervise, tmp_path: Path, model_dir: Path, cache: dict[str, str]
) -> None:
    struck = killed_three_times(supervise, model_dir, cache, 4)
    whole = config(tmp_path / "whole", 4)
    assert supervise(whole, env=cache).code == 0
    assert_same_bits(struck, final_state(whole, tmp_path / "whole"))


def check_recoveries(result: Result) -> None:
    """Each is told, part by part, and the parts make up the whole."""
    first, *others = result.summary["attempts"]
    assert "recovery" not in first
    for attempt in others:
        told = attempt["recovery"]
        parts = [part for part in told["parts"] if part != "backoff"]
        assert parts[:4] == ["detect", "clean up", "decide", "start"]
        assert parts[4] in ("imports", "standby")
        assert "restore" in parts
        assert parts[-1] == "first step"
        assert sum(told["parts"].values()) == pytest.approx(told["seconds"], abs=1e-3)
        step = told["first_completed_step"]
        assert 0 <= told["lost_steps"] <= 17 - step
        assert result.has_event("recovered", attempt=attempt["attempt"], step=step)


def test_a_stopped_job_saves_and_goes_on_where_it_was(
    start: Start, supervise: Supervise, model_dir: Path, cache: dict[str, str]
) -> None:
    job = config(model_dir, max_steps=100_000)
    running = start(job, env=cache)
    running.wait_for_event("checkpoint-committed")  # of which step: it is heard twice a second
    running.signal(signal.SIGTERM)
    stopped = running.result()
    assert stopped.code == 75, stopped.log
    saved = stopped.summary["highest_committed_step"]
    assert saved >= 5
    target = str(saved + 3)
    again = supervise(job, "--set", f"trainer.init.loop.max_steps={target}", env=cache)
    assert again.code == 0
    assert again.has_event("state-restored", step=saved)
    assert again.summary["preemptions_used"] == 0


def test_a_trainer_that_is_told_to_stop_by_somebody_else_is_preempted(
    start: Start, model_dir: Path, cache: dict[str, str]
) -> None:
    """SIGTERM to the worker alone: it saves at the next boundary, dies of it, and is restarted."""
    running = start(config(model_dir, max_steps=100_000), env=cache)
    (pid,) = running.wait_for_event("workers-started")["pids"]
    running.wait_for_event("checkpoint-committed")  # of which step: it is heard twice a second
    os.kill(pid, signal.SIGTERM)
    running.wait_for_event("attempt-failed", charge="preemptions")
    running.wait_for_event("state-restored", attempt=2)
    running.signal(signal.SIGTERM)
    result = running.result()
    assert result.code == 75
    assert result.has_event("budget-used", restarts=0, preemptions=1, max_num_preemptions=20)


def test_exit_0_before_the_target_step_is_charged_and_restarted(
    supervise: Supervise, model_dir: Path, cache: dict[str, str]
) -> None:
    result = supervise(config(model_dir, faults=[{"step": 7, "exit_code": 0}]), env=cache)
    assert result.code == 0
    failure = result.summary["attempts"][0]["failure"]
    assert (failure["rule"], failure["charge"]) == ("early-exit", "restarts")
    assert result.has_event("budget-used", restarts=1, max_num_restarts=2)


def test_a_failed_assertion_in_the_trainer_ends_the_job(
    supervise: Supervise, model_dir: Path, cache: dict[str, str]
) -> None:
    faults = [{"step": 2, "exception": "AssertionError", "message": "two is not three"}]
    result = supervise(config(model_dir, faults=faults), env=cache)
    assert result.code == 70
    failed = result.event("attempt-failed", step=2)
    assert failed["root_cause"].endswith("AssertionError: two is not three")


def test_a_job_whose_only_checkpoint_is_damaged_ends_and_says_what_to_do(
    supervise: Supervise, model_dir: Path, cache: dict[str, str]
) -> None:
    job = config(model_dir, max_steps=5)
    assert supervise(job, env=cache).code == 0
    with (model_dir / "checkpoints" / "5" / "progress" / "metadata").open("ab") as file:
        file.write(b" ")
    result = supervise(job, "--set", "trainer.init.loop.max_steps=7", env=cache)
    assert result.code == 70
    assert result.attempts == 3, "two of them found no checkpoint that is not damaged"
    told = result.event("checkpoint-damaged", level="warning", step=5)
    assert "moved to corrupt/5-1" in told["text"]
    assert result.has_event("verdict", code="no-usable-checkpoint")
    failed = result.events("attempt-failed", code="no-usable-checkpoint")[-1]
    remedy = f"remove what was moved to {model_dir}/checkpoints/corrupt (5-1, each"
    assert remedy in failed["root_cause"]


def test_a_missing_tpu_is_an_error_and_never_a_run_on_the_cpu(
    supervise: Supervise, model_dir: Path
) -> None:
    job = config(model_dir, 4)
    job["trainer"]["init"]["devices"] = {"platform": "tpu", "type": "v5e-4"}
    job["trainer"]["init"]["autorestart"]["max_num_restarts"] = 0
    result = supervise(job)
    assert result.code == 70
    assert result.has_event("verdict", code="backend-missing")
    assert not [told for told in result.events("output") if "completed" in told["text"]]
    assert result.summary["attempts"][0]["ending_step"] is None


@pytest.mark.slow
def test_two_phases_the_second_starts_from_the_parameters_of_the_first(
    supervise: Supervise, model_dir: Path, unoptimised: dict[str, str]
) -> None:
    first, second = (config(model_dir, max_steps=5)["trainer"] for _ in range(2))
    first["name"], second["name"] = "base", "tune"
    second["init"]["loop"] |= {"max_steps": 3}
    job = {"trainer": [{"trainer": first}, {"trainer": second}]}
    result = supervise(job, env=unoptimised)
    assert result.code == 0, result.log
    assert (model_dir / "checkpoints" / "base" / "5").is_dir()
    assert (model_dir / "checkpoints" / "tune" / "3").is_dir()
    again = supervise(job, env=unoptimised)
    assert again.code == 0
    assert again.attempts == 2, "completed phases are not run again"
    second["init"]["loop"] |= {"max_steps": 4}
    grown = supervise(job, env=unoptimised)
    assert grown.code == 0
    assert grown.attempts == 3
    first["init"]["loop"] |= {"max_steps": 6}
    refused = supervise(job, env=unoptimised)
    assert refused.code == 78
    assert "the phase is complete and cannot be changed" in refused.err


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ({"optimizer": {"name": "sgdd"}}, "optimizer.name", "sgdd"),
        ({"model": {"hiden_size": 3}}, "model.hiden_size", "did you mean 'hidden_size'"),
        ({"loop": {"max_steps": 5, "global_batch_size": 7}}, "loop.global_batch_size", "7"),
        ({"autorestart": {}}, "autorestart.max_num_restarts", "is required"),
    ],
)
def test_an_impossible_config_is_refused_before_anything_is_launched(
    supervise: Supervise, model_dir: Path, change: dict[str, Any], key: str, said: str
) -> None:
    job = config(model_dir, 4)
    job["trainer"]["init"] |= change
    result = supervise(job)
    assert result.code == 78
    told = next(line for line in result.err.splitlines() if f"trainer.init.{key}: " in line)
    assert said in told
    number = int(told.split("trainer.yaml:")[1].split(":")[0])
    text = (model_dir.parent / "trainer.yaml").read_text().splitlines()[number - 1]
    assert text.strip().startswith(key.split(".")[0 if "required" in said else -1])
    assert not model_dir.exists()


@pytest.mark.slow
def test_killed_while_it_learns_completions_it_ends_with_the_same_bits(
    supervise: Supervise, model_dir: Path, tmp_path: Path, cache: dict[str, str]
) -> None:
    data = tmp_path / "sums.jsonl"
    sums = [{"ask": f"{n}+{m}=", "say": str(n + m)} for n in range(40) for m in range(40)]
    data.write_text("".join(json.dumps(each) + "\n" for each in sums))

    def job(place: Path, *faults: dict[str, Any]) -> dict[str, Any]:
        made = config(place, faults=list(faults))
        fields = {"paths": [str(data)], "prompt_field": "ask", "completion_field": "say"}
        made["trainer"]["fit"]["train_dataloader"] |= fields
        return made

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    struck = job(killed, *({"step": step, "signal": "SIGKILL"} for step in (4, 12)))
    for made in (struck, job(whole)):
        result = supervise(made, env=cache)
        assert result.code == 0, result.log
    assert_same_bits(final_state(struck, killed), final_state(job(whole), whole))
