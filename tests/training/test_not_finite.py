"""A batch that gives NaN: nothing of it is saved, and a run that passes over it is reproducible."""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from supervisor.config.training.resolved import StartPoint, parse
from tests.training.notices import Notices
from trainer.checkpoint import CheckpointSaver, newest_step
from trainer.checkpoint_steps import steps_in
from trainer.config_fingerprint import fingerprint
from trainer.first_state import first_state
from trainer.not_finite import WeightsNotFiniteError, in_words, not_finite
from trainer.train_state import TrainState

from .harness import MakeTrainer, Mapping, Trainer, assert_same_bits, batches_of, spec, tiny

Change = Callable[[Any, jax.Array], jax.Array]
"""Makes another array out of one and its path."""
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
    loader = config.fit.decisive
    batches = batches_of(loader, config.init.loop.global_batch_size, 1)
    has_poison = [bool((next(batches) == POISON).any()) for _ in range(17)]
    step = has_poison.index(True) + 1
    assert 6 < step < 16

    def overflow(path: Any, array: jax.Array) -> jax.Array:
        embedding = "embedding" in jax.tree_util.keystr(path)
        return array.at[POISON].set(3.3e38) if embedding else array

    _save_first(mapping, batches_of(loader, 8, 1), params=overflow)
    return step


def _unchanged(_: Any, array: jax.Array) -> jax.Array:
    return array


def _save_first(
    mapping: Mapping, batches: Any, params: Change = _unchanged, optimizer: Change = _unchanged
) -> None:
    init = parse(mapping).init
    fresh = spec(init).fresh()

    next(batches)
    said = Notices()
    checkpoints = CheckpointSaver(steps_in(init.checkpoint.directory), 2, fingerprint(init), said)
    state = TrainState(
        fresh.step + 1,
        jax.tree.map_with_path(params, fresh.params),
        jax.tree.map_with_path(optimizer, fresh.optimizer),
    )
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


def test_a_state_that_no_loss_tells_of_is_not_saved_and_its_arrays_are_named(
    make_trainer: MakeTrainer,
) -> None:
    trainer = make_trainer(max_steps=2)
    config = parse(trainer.mapping)

    def overflow(path: Any, array: jax.Array) -> jax.Array:
        is_mean = "nu" in jax.tree_util.keystr(path)
        return jnp.full_like(array, float("inf")) if is_mean else array

    _save_first(trainer.mapping, batches_of(config.fit.decisive, 8, 1), optimizer=overflow)
    assert trainer.run().returncode == 1
    assert newest_step(trainer.checkpoints) == 1
    record = trainer.failure()
    assert record.step == 2
    assert record.exceptions[-1].type.endswith("inflight.StateNotFiniteError")
    assert record.exceptions[-1].message.startswith(
        "step 2: its state is not saved, because it holds NaN or Inf in the optimizer's state: "
    )
    assert ".nu." in record.exceptions[-1].message


def test_arrays_that_are_not_finite_are_named_part_by_part(tmp_path: Path) -> None:
    """And no phase starts from a checkpoint that has them."""
    mapping = tiny(tmp_path / "checkpoints")
    config = parse(mapping)
    plan = spec(config.init)
    fresh = plan.fresh()
    assert not_finite(fresh) == []

    def overflow(array: jax.Array) -> jax.Array:
        return array * float("inf")

    params = jax.tree.map_with_path(
        lambda path, x: overflow(x) if "embedding" in jax.tree_util.keystr(path) else x,
        fresh.params,
    )
    bad = replace(fresh, params=params, frozen=jax.tree.map(overflow, fresh.params))
    assert in_words(not_finite(bad)) == (
        "the trained parameters: embedding.embedding; the frozen weights (no step changes them): "
        "blocks.0.attention.key.kernel, blocks.0.attention.output.kernel, "
        "blocks.0.attention.query.kernel and 8 more"
    )
    steps = steps_in(config.init.checkpoint.directory)
    checkpoints = CheckpointSaver(steps, 2, fingerprint(config.init), Notices())
    data = batches_of(config.fit.decisive, 8, 1)
    checkpoints.save(replace(fresh, params=params), 1, data.get_state())
    assert checkpoints.committed(wait=True) == 1
    checkpoints.close()
    source = StartPoint(directory=tmp_path / "checkpoints")
    with pytest.raises(WeightsNotFiniteError, match=r"step 1 in .* Inf in params\.embedding"):
        first_state(source, plan, Notices())
    first_state(source, plan, Notices(), checks=False)
