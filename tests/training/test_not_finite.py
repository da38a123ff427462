"""A batch that gives NaN: nothing of it is saved, and a run that passes over it is reproducible."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from supervisor.config.training.resolved import parse
from tests.training.notices import Notices
from trainer.checkpoint import CheckpointSaver, newest_step
from trainer.checkpoint_steps import steps_in
from trainer.config_fingerprint import fingerprint
from trainer.data import training_batches
from trainer.train_state import TrainState

from .harness import MakeTrainer, Mapping, Trainer, assert_same_bits, spec

POISON = 1
"""A byte whose embedding overflows under dropout, and that stands at one place of the data."""


def poisoned(mapping: Mapping, folder: Path) -> int:
    """Give the config data with one bad batch, and a checkpoint of step 1 that suffers from it;
    the step that the batch belongs to."""
    mapping["trainer"]["init"]["model"]["tie_embeddings"] = False
    data = folder / "data.txt"
    mapping["trainer"]["fit"]["train_dataloader"]["paths"] = str(data)
    letters = random.Random(0).choices(range(97, 123), k=200 * 16)
    letters[88 * 16 + 8] = POISON
    data.write_bytes(bytes(letters))

    config = parse(mapping)
    loader = config.fit.train_dataloader
    batches = training_batches(loader, config.init.loop.global_batch_size, 1)
    has_poison = [bool((next(batches) == POISON).any()) for _ in range(17)]
    step = has_poison.index(True) + 1
    assert 6 < step < 16
    _save_first(mapping, batches=training_batches(loader, 8, 1))
    return step


def _save_first(mapping: Mapping, batches: Any) -> None:
    init = parse(mapping).init
    fresh = spec(init).fresh()

    def overflow(path: Any, array: jax.Array) -> jax.Array:
        embedding = "embedding" in jax.tree_util.keystr(path)
        return array.at[POISON].set(3.3e38) if embedding else array

    params = jax.tree.map_with_path(overflow, fresh.params)
    next(batches)
    said = Notices()
    checkpoints = CheckpointSaver(steps_in(init.checkpoint.directory), 2, fingerprint(init), said)
    state = TrainState(fresh.step + 1, params, fresh.optimizer)
    checkpoints.save(state, 1, batches.get_state())
    assert checkpoints.committed(wait=True) == 1
    checkpoints.close()
    assert not said


def skipping(trainer: Trainer, *steps: int) -> Trainer:
    trainer.extra["SUPERVISE_ADJUST"] = json.dumps({"skip_steps": steps})
    return trainer


def make_poisoned(make_trainer: MakeTrainer, name: str, **loop: int) -> tuple[Trainer, int]:
    trainer = make_trainer(name, **loop)
    return trainer, poisoned(trainer.mapping, trainer.folder)


def test_a_state_that_is_not_finite_is_never_saved(make_trainer: MakeTrainer) -> None:
    trainer, bad = make_poisoned(make_trainer, "run")
    done = trainer.run()
    assert done.returncode == 1
    assert newest_step(trainer.checkpoints) == (bad - 1) // 5 * 5
    record = trainer.failure()
    assert record.exceptions[-1].type.endswith("NotFiniteError")
    assert f"step {bad}: NaN or Inf" in record.exceptions[-1].message
    assert record.step == bad - 1
    (ledger,) = trainer.checkpoints.glob("supervise_ledger_*.json")
    assert json.loads(ledger.read_text())["pinned"] == newest_step(trainer.checkpoints)


def test_nor_on_sigterm(make_trainer: MakeTrainer) -> None:
    trainer, bad = make_poisoned(make_trainer, "run")
    # Told while the bad step is in flight: the boundary after it is where it would save.
    done = trainer.run({"step": bad - 1, "signal": "SIGTERM"})
    assert done.returncode == 1, done.stdout
    assert newest_step(trainer.checkpoints) == (bad - 1) // 5 * 5
    assert "NotFiniteError" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 4])
def test_a_skipped_batch_is_skipped_the_same_way_however_often_it_is_restarted(
    make_trainer: MakeTrainer, num_devices: int
) -> None:
    whole, bad = make_poisoned(make_trainer, "whole", num_devices=num_devices)
    output = skipping(whole, bad).finish()
    assert f"step {bad}: its batch is skipped" in output

    killed, _ = make_poisoned(make_trainer, "killed", num_devices=num_devices)
    for step in (bad - 1, bad, bad + 1):
        struck = skipping(killed, bad).run({"step": step, "signal": "SIGKILL", "id": f"at-{step}"})
        assert struck.returncode == -signal.SIGKILL
    killed.finish()

    assert_same_bits(killed.state(17), whole.state(17))
    assert all(np.isfinite(one).all() for one in jax.tree.leaves(whole.state(17).params))


def test_an_overflow_without_nan_in_the_data_is_found_too(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(max_steps=3)
    trainer.mapping["trainer"]["init"]["optimizer"] = {"name": "sgd", "learning_rate": 1e38}
    assert trainer.run().returncode == 1
    assert newest_step(trainer.checkpoints) is None
    assert "NaN or Inf" in trainer.failure().exceptions[-1].message
