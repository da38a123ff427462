"""The kill matrix: what is killed at random, training or an evaluation, ends as if nothing had
happened, with the same parameters, optimizer and lines of metrics.jsonl, bit for bit. `make matrix`
kills each kind twenty times."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.protocol import metrics_file
from tests.running import PATIENCE, Result
from tests.training.configs import restarts_at_once
from tests.training.harness import assert_same_bits, final_state, tiny

Supervise = Callable[..., Result]

LORA = {"rank": 2, "alpha": 8, "dropout": 0.3}
GRPO = {
    "reward": "tests.training.rewarding:of_ascii",
    "completion_length": 4,
    "group_size": 4,
    "num_iterations": 3,
    "top_p": 0.9,
}
"""A batch is used three times, and a checkpoint is due every five steps: most are in the middle."""
KINDS: dict[str, dict[str, Any]] = {
    "all-tokens": {},
    "accumulation": {"loop": {"micro_batch_size": 2}},
    "workers": {"workers": 2},
    "lora": {"lora": LORA},
    "lora-alone": {"lora": LORA, "save_frozen": False},
    "int8-base": {"lora": LORA | {"base": "int8"}},
    "int8-base-alone": {"lora": LORA | {"base": "int8"}, "save_frozen": False},
    "evaluation": {"evaluates": True},
    "dpo": {"pairs": True},
    "dpo-of-lora": {"lora": LORA, "pairs": True, "save_frozen": False},
    "grpo": {"grpo": GRPO},
    "grpo-workers": {"grpo": GRPO, "workers": 2},
    "grpo-snapshots": {"grpo": GRPO, "snapshot": {"every": 2}},
    "grpo-accumulation": {"grpo": GRPO, "loop": {"micro_batch_size": 2}},
    "grpo-rollout-mesh": {"grpo": GRPO | {"rollout": {"devices": 1}}, "devices": 2},
    "grpo-of-lora": {"grpo": GRPO | {"importance": "sequence"}, "lora": LORA, "save_frozen": False},
}


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    data = tmp_path / "pairs.jsonl"
    sums = [(n, m) for n in range(12) for m in range(12)]
    records = [{"ask": f"{n}+{m}=", "good": str(n + m), "bad": str(n + m + 1)} for n, m in sums]
    data.write_text("".join(json.dumps(each) + "\n" for each in records))
    return data


def job(
    model_dir: Path, data: Path, kind: str, steps: int, faults: list[dict[str, Any]]
) -> dict[str, Any]:
    """A supervised job of the tiny trainer, with a checkpoint every 5 steps."""
    options = KINDS[kind]
    workers = options.get("workers", 1)
    devices = options.get("devices", workers)
    trainer = tiny(model_dir, max_steps=steps, **options.get("loop", {}))["trainer"]
    trainer["init"] |= {
        "model_dir": str(model_dir),
        "workers": workers,
        "devices": {"platform": "cpu", "count": devices},
        "checkpoint": {"every": 5, "keep": 2, "save_frozen": options.get("save_frozen", True)},
        "autorestart": {**restarts_at_once(len(faults)), "min_num_devices": devices},
    }
    if "snapshot" in options:
        trainer["init"]["checkpoint"]["snapshot"] = options["snapshot"]
    if "lora" in options:
        trainer["init"]["lora"] = options["lora"]
    if "grpo" in options:
        trainer["init"]["grpo"] = options["grpo"]
    if "pairs" in options or "grpo" in options:
        answers = {"chosen_field": "good", "rejected_field": "bad"} if "pairs" in options else {}
        fields = {"prompt_field": "ask", **answers}
        loader = {"paths": [str(data)], "sequence_length": 16, **fields}
        trainer["fit"]["train_dataloader"] = loader
        trainer["fit"]["validation"]["dataloader"] = loader
    if "evaluates" in options:
        fit, init = trainer["fit"], trainer["init"]
        fit["validation"] = {"steps": steps, "dataloader": fit.pop("train_dataloader")}
        del init["optimizer"], init["loop"]["max_steps"]
    trainer["faults"] = faults
    return {"trainer": trainer}


DEATHS: tuple[dict[str, Any], ...] = (
    *({"signal": name} for name in ("SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT")),
    {"exit_code": 1},
    {"exception": "ConnectionResetError"},
)


def deaths(seed: int, number: int, steps: int) -> list[dict[str, Any]]:
    """At random steps, each of any kind; one more in the middle of a save."""
    dice = random.Random(seed)
    at = sorted(dice.sample(range(1, steps), number - 1))
    return [
        *({"step": step} | dice.choice(DEATHS) for step in at),
        {"stage": "SAVING", "signal": "SIGKILL"},
    ]


def measured(model_dir: Path, name: str) -> dict[int, dict[str, Any]]:
    """The lines of metrics.jsonl that have `name`, by step, without what differs between attempts.
    Each step has one."""
    lines = map(json.loads, (model_dir / "metrics.jsonl").read_text().splitlines())
    found = [each for each in lines if name in each]
    by_step = {
        each["step"]: {k: v for k, v in each.items() if k not in metrics_file.OF_THE_RUN}
        for each in found
    }
    assert len(by_step) == len(found)
    return by_step


def patience(number: int) -> float:
    """Returns the seconds that a job with so many deaths may take beside a loaded machine."""
    return PATIENCE + 60.0 * number


def check(
    supervise: Supervise, cache: dict[str, str], folder: Path, pairs: Path, kind: str, number: int
) -> None:
    steps = 17 if number < 10 else 67
    killed, whole = folder / "killed", folder / "whole"
    struck = job(killed, pairs, kind, steps, deaths(number, number, steps))
    calm = job(whole, pairs, kind, steps, [])
    result = supervise(struck, env=cache, patience=patience(number))
    assert result.code == 0, result.log
    assert len(result.events("drill-fired")) == number
    assert supervise(calm, env=cache, patience=patience(number)).code == 0
    losses = measured(whole, "loss")
    assert list(losses) == list(range(1, steps + 1))
    assert measured(killed, "loss") == losses
    assert measured(killed, "evaluation_loss").items() == measured(whole, "evaluation_loss").items()
    if "evaluates" not in KINDS[kind]:  # its checkpoints have no state
        assert_same_bits(final_state(struck, killed, steps), final_state(calm, whole, steps))


_IN_HASTE = ("lora-alone",)
_AT_LEISURE = ("grpo-rollout-mesh", "dpo", "int8-base-alone", "evaluation", "grpo")


@pytest.mark.parametrize(
    "kind",
    [*_IN_HASTE, *(pytest.param(kind, marks=pytest.mark.slow) for kind in _AT_LEISURE)],
)
def test_killed_three_times_it_ends_with_the_same_bits(
    supervise: Supervise, tmp_path: Path, cache: dict[str, str], pairs: Path, kind: str
) -> None:
    check(supervise, cache, tmp_path, pairs, kind, 3)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", list(KINDS))
def test_killed_twenty_times_it_ends_with_the_same_bits(
    supervise: Supervise, tmp_path: Path, cache: dict[str, str], pairs: Path, kind: str
) -> None:
    check(supervise, cache, tmp_path, pairs, kind, 20)
