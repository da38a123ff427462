"""The kill matrix: training that is killed at random ends as if nothing had happened, with the same
parameters, optimizer and lines of metrics.jsonl, bit for bit. `make matrix` kills each kind twenty
times."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result
from tests.training.harness import assert_same_bits, final_state, tiny

Supervise = Callable[..., Result]

LORA = {"rank": 2, "alpha": 8, "dropout": 0.3}
KINDS: dict[str, dict[str, Any]] = {
    "all-tokens": {},
    "accumulation": {"loop": {"micro_batch_size": 2}},
    "workers": {"workers": 2},
    "lora": {"lora": LORA},
    "lora-alone": {"lora": LORA, "save_frozen": False},
    "dpo": {"pairs": True},
    "dpo-of-lora": {"lora": LORA, "pairs": True, "save_frozen": False},
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
    trainer = tiny(model_dir, max_steps=steps, **options.get("loop", {}))["trainer"]
    trainer["init"] |= {
        "model_dir": str(model_dir),
        "workers": workers,
        "devices": {"platform": "cpu", "count": workers},
        "checkpoint": {"every": 5, "keep": 2, "save_frozen": options.get("save_frozen", True)},
        "autorestart": {
            "max_num_restarts": len(faults),
            "max_num_preemptions": len(faults),
            "backoff": {"first": 0.05, "max": 0.2},
            "standby": "off",
            "prefetch": False,
            "repeated_failure_limit": 0,
        },
    }
    if "lora" in options:
        trainer["init"]["lora"] = options["lora"]
    if "pairs" in options:
        fields = {"prompt_field": "ask", "chosen_field": "good", "rejected_field": "bad"}
        loader = {"paths": [str(data)], "sequence_length": 16, **fields}
        trainer["fit"]["train_dataloader"] = loader
        trainer["fit"]["validation"]["dataloader"] = loader
    trainer["faults"] = faults
    return {"trainer": trainer}


def deaths(seed: int, number: int, steps: int) -> list[dict[str, Any]]:
    """At random steps, by SIGKILL or SIGTERM; one of them in the middle of a save."""
    dice = random.Random(seed)
    at = sorted(dice.sample(range(1, steps), number - 1))
    signals = [dice.choice(["SIGKILL", "SIGTERM"]) for _ in at]
    found: list[dict[str, Any]] = [
        {"step": step, "signal": signal} for step, signal in zip(at, signals, strict=True)
    ]
    return [*found, {"stage": "SAVING", "signal": "SIGKILL"}]


def measured(model_dir: Path, name: str) -> dict[int, dict[str, Any]]:
    """The lines of metrics.jsonl that have `name`, by step, without what differs between attempts.
    Each step has one."""
    lines = map(json.loads, (model_dir / "metrics.jsonl").read_text().splitlines())
    found = [each for each in lines if name in each]
    by_step = {
        each["step"]: {k: v for k, v in each.items() if k not in ("time", "attempt")}
        for each in found
    }
    assert len(by_step) == len(found)
    return by_step


def check(
    supervise: Supervise, cache: dict[str, str], folder: Path, pairs: Path, kind: str, number: int
) -> None:
    steps = 17 if number < 10 else 67
    killed, whole = folder / "killed", folder / "whole"
    struck = job(killed, pairs, kind, steps, deaths(number, number, steps))
    calm = job(whole, pairs, kind, steps, [])
    result = supervise(struck, env=cache)
    assert result.code == 0, result.log
    assert len(result.events("drill-fired")) == number
    assert supervise(calm, env=cache).code == 0
    losses = measured(whole, "loss")
    assert list(losses) == list(range(1, steps + 1))
    assert measured(killed, "loss") == losses
    assert measured(killed, "evaluation_loss").items() == measured(whole, "evaluation_loss").items()
    assert_same_bits(final_state(struck, killed, steps), final_state(calm, whole, steps))


@pytest.mark.parametrize("kind", ["lora-alone", "dpo"])
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
