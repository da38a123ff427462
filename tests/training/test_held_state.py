"""The state between two steps: what is read of it is always the newest."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.data import Batch
from trainer.held_state import CompiledStep, HeldState, Leaves
from trainer.step import Metrics
from trainer.train_state import TrainState


def doubled(leaves: Leaves, tokens: jax.Array | Batch) -> tuple[Leaves, Metrics]:
    return [2 * leaf for leaf in leaves], {"loss": jnp.asarray(tokens)}


def state_of(step: int) -> TrainState:
    return TrainState(step=jnp.int32(step), params=nnx.State({"weight": jnp.ones(3)}), optimizer=())


def test_what_is_read_is_the_state_after_the_last_step() -> None:
    held = HeldState(state_of(1))
    step = CompiledStep(doubled, jax.tree.structure(state_of(1)))
    assert held.whole.step == 1
    assert held.advance(step, jnp.float32(7))["loss"] == 7
    assert held.whole.step == 2
    assert jax.tree.leaves(held.whole.params)[0].tolist() == [2, 2, 2]
    held.whole = state_of(5)
    assert held.whole.step == 5
    held.advance(step, jnp.float32(7))
    held.advance(step, jnp.float32(7))
    assert held.whole.step == 20


def test_a_step_of_leaves_takes_and_returns_whole_states_too() -> None:
    step = CompiledStep(doubled, jax.tree.structure(state_of(1)))
    after, metrics = step(state_of(3), jnp.float32(7))
    assert (int(after.step), float(metrics["loss"])) == (6, 7)
