"""Fine-tuning a model of Hugging Face on packed chats, killed and restored: the same bits as
without a kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result
from tests.training.configs import restarts_at_once
from tests.training.harness import assert_same_bits, final_state, tiny

from .test_kill_matrix import deaths, measured, patience

pytest.importorskip("tokenizers")

Supervise = Callable[..., Result]
GIVEN = Path(__file__).parents[1] / "training" / "pretrained"


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    sums = [(n, m) for n in range(12) for m in range(12)]
    records = [
        [
            {"role": "user", "content": f"What is {n}+{m}?"},
            {"role": "assistant", "content": str(n + m)},
        ]
        for n, m in sums
    ]
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in records))
    return path


def job(
    model_dir: Path, folder: Path, data: Path, steps: int, faults: list[dict[str, Any]]
) -> dict[str, Any]:
    trainer = tiny(model_dir, max_steps=steps)["trainer"]
    trainer["init"] |= {
        "model_dir": str(model_dir),
        "devices": {"platform": "cpu", "count": 1},
        "model": {"pretrained": str(folder), "dropout": 0.1},
        "lora": {"rank": 2, "dropout": 0.2},
        "checkpoint": {"every": 5, "keep": 2, "save_frozen": False},
        "autorestart": restarts_at_once(len(faults)),
    }
    loader = {"paths": [str(data)], "sequence_length": 96, "messages_field": "messages"}
    trainer["fit"]["train_dataloader"] = loader
    trainer["fit"]["validation"]["dataloader"] = loader
    return {"trainer": {**trainer, "faults": faults}}


def check(
    supervise: Supervise, cache: dict[str, str], folder: Path, chats: Path, number: int
) -> None:
    steps = 17 if number < 10 else 67
    model = Path(shutil.copytree(GIVEN / "qwen3", folder / "model"))
    killed, whole = folder / "killed", folder / "whole"
    struck = job(killed, model, chats, steps, deaths(7, number, steps))
    calm = job(whole, model, chats, steps, [])
    result = supervise(struck, env=cache, patience=patience(number))
    assert result.code == 0, result.log
    assert len(result.events("drill-fired")) == number
    assert supervise(calm, env=cache, patience=patience(number)).code == 0
    losses = measured(whole, "loss")
    assert list(losses) == list(range(1, steps + 1))
    assert losses[steps]["loss"] < losses[1]["loss"]
    assert measured(killed, "loss") == losses
    assert measured(killed, "evaluation_loss").items() == measured(whole, "evaluation_loss").items()
    assert len(list((killed / "tokens").glob("*.tokens"))) == 1, "no attempt read the data again"
    assert_same_bits(final_state(struck, killed, steps), final_state(calm, whole, steps))


@pytest.mark.slow
def test_killed_three_times_it_ends_with_the_same_bits(
    supervise: Supervise, tmp_path: Path, unoptimised: dict[str, str], chats: Path
) -> None:
    check(supervise, unoptimised, tmp_path, chats, 3)


@pytest.mark.matrix
def test_killed_twenty_times_it_ends_with_the_same_bits(
    supervise: Supervise, tmp_path: Path, cache: dict[str, str], chats: Path
) -> None:
    check(supervise, cache, tmp_path, chats, 20)
