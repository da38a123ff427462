"""On fewer devices the same is computed: up to rounding, or to the bit, and from any checkpoint."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from supervisor.config.training.layout import rung
from supervisor.config.training.resolved import InitConfig, parse
from trainer.batch_sharder import BatchSharder
from trainer.checkpoint import CheckpointSaver
from trainer.checkpoint_steps import steps_in
from trainer.config_fingerprint import differences, fingerprint
from trainer.mesh import make_mesh
from trainer.step import Metrics, jit_evaluation_loss, jit_train_step
from trainer.train_state import TrainState, TrainStateSpec

from .harness import MakeTrainer, assert_same_bits, spec, tiny

BITWISE = {"elastic": "bitwise"}


def init(optimizer: str) -> InitConfig:
    mapping = tiny(Path("/tmp/checkpoints"), micro_batch_size=1)["trainer"]
    mapping["init"]["model"]["dropout"] = 0.5
    mapping["init"]["optimizer"] = {"name": optimizer, "learning_rate": 0.01, "clip_norm": 0.1}
    mapping["init"]["determinism"] = BITWISE
    return parse({"trainer": mapping}).init


def three_steps(config: InitConfig, num_devices: int) -> tuple[TrainState, Metrics, jax.Array]:
    """The state after three steps on so many devices, the last one's metrics, and what it would
    evaluate to."""
    found = rung(config, num_devices)
    assert found is not None
    sharder = BatchSharder(make_mesh(found), found)
    spec = TrainStateSpec.of(config, sharder.mesh)
    step, state = jit_train_step(spec), spec.fresh()
    for seed in range(3):
        batch = np.random.default_rng(seed).integers(0, 257, (8, 17), np.int32)
        tokens = sharder.put(batch)
        state, metrics = step(state, tokens)
    return state, metrics, jit_evaluation_loss(spec)(state, tokens)


@pytest.mark.slow
def test_bitwise_means_every_bit_on_every_rung() -> None:
    """Slow for XLA to optimise each of the programs, as it does for users."""
    config = init("adafactor")
    four = three_steps(config, 4)
    assert config.optimizer is not None
    assert four[1]["gradient_norm"] > config.optimizer.clip_norm
    assert_same_bits(three_steps(config, 2), four)


def test_what_decides_the_bits_is_kept_within_a_phase() -> None:
    config = init("adamw")
    for accumulation in (1, 2):
        found = rung(config, 4, accumulation)
        assert found is not None
        assert (found.per_device_batch, found.accumulation) == (1, 2)
    coarser = config.loop.model_copy(update={"micro_batch_size": 2})
    rounding = config.determinism.model_copy(update={"elastic": "rounding"})
    for changed, what in (
        ({"loop": coarser}, "loop.micro_batch_size is 1 there, but 2"),
        ({"determinism": rounding}, "determinism.elastic is 'bitwise' there, but 'rounding'"),
    ):
        other = config.model_copy(update=changed)
        (told,) = differences(fingerprint(config), fingerprint(other))
        assert told.startswith(what)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_a_checkpoint_of_any_rung_is_restored_on_any_other(optimizer: str, tmp_path: Path) -> None:
    config = init(optimizer)
    layouts = [(4, 2), (2, 2), (4, 4), (1, 1), (4, 1)]
    plans = [spec(config, num_devices, fsdp) for num_devices, fsdp in layouts]
    state = replace(filled(plans[0]), step=jnp.int32(3))
    checkpoints = CheckpointSaver(steps_in(tmp_path), 1, {}, print)
    checkpoints.save(state, 3, {"batch": 3})
    checkpoints.committed(wait=True)
    checkpoints.wait_for_manifest()
    for plan in plans:
        found = checkpoints.restore(plan.abstract)
        assert found is not None
        assert_same_bits(found[1], state)
        for one, like in zip(
            jax.tree.leaves(found[1]), jax.tree.leaves(plan.abstract), strict=True
        ):
            assert one.sharding.is_equivalent_to(like.sharding, one.ndim)
    checkpoints.close()


def filled(plan: TrainStateSpec) -> TrainState:
    """A state with other numbers in each place."""
    generator = np.random.default_rng(0)

    def fill(leaf: Any) -> jax.Array:
        numbers = generator.random(leaf.shape, np.float32) * 100
        placed: jax.Array = jax.device_put(numbers.astype(leaf.dtype), leaf.sharding)
        return placed

    state: TrainState = jax.tree.map(fill, plan.abstract)
    return state


@pytest.mark.slow
def test_down_and_up_the_ladder_it_ends_with_the_bits_of_an_undisturbed_run(
    make_trainer: MakeTrainer,
) -> None:
    whole, shrunk = (
        make_trainer(name, 8, max_steps=6, global_batch_size=16, micro_batch_size=2)
        for name in ("whole", "shrunk")
    )
    for trainer in (whole, shrunk):
        trainer.extra["XLA_FLAGS"] = ""  # XLA optimises, as it does for users
        section = trainer.mapping["trainer"]
        section["init"]["determinism"] = BITWISE
        # So large that XLA splits the sums of its matrix products among threads.
        section["init"]["model"] |= {"hidden_size": 128, "mlp_size": 352}
        section["fit"]["train_dataloader"]["sequence_length"] = 128
    expected = whole.finish()
    for num_devices, step in ((8, 1), (4, 3), (2, 5)):
        shrunk.num_devices = num_devices
        assert shrunk.run({"step": step, "signal": "SIGTERM"}).returncode == -signal.SIGTERM
    shrunk.num_devices = 8
    output = shrunk.finish()

    assert "restored step 5" in output
    (line,) = (line for line in expected.splitlines() if line.startswith("step 6  loss"))
    assert line.split("  ")[:2] == next(
        text.split("  ")[:2] for text in output.splitlines() if text.startswith("step 6  loss")
    )
    assert_same_bits(shrunk.state(6), whole.state(6))
