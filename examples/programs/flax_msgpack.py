# /// script
# requires-python = ">=3.11"
# dependencies = ["flax==0.12.8", "jax==0.10.2", "optax==0.2.8"]
# ///
"""A Linen model whose `TrainState` flax saves as msgpack, as it did before Orbax.

supervise run -- python examples/programs/flax_msgpack.py --workdir out

flax writes one file a step, `out/checkpoint_N`; the program goes on from the newest one.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import checkpoints
from flax.training.train_state import TrainState

WIDTH, BATCH = 32, 64
flax.config.update("flax_use_orbax_checkpointing", False)


class Network(nn.Module):
    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        return nn.Dense(1)(nn.relu(nn.Dense(WIDTH)(inputs)))


def initial() -> TrainState:
    network = Network()
    parameters = network.init(jax.random.key(0), jnp.zeros((1, WIDTH)))
    return TrainState.create(apply_fn=network.apply, params=parameters, tx=optax.adam(1e-3))


@jax.jit
def train_step(state: TrainState) -> tuple[TrainState, jax.Array]:
    inputs = jax.random.normal(jax.random.key(state.step), (BATCH, WIDTH))

    def loss_of(parameters: Any) -> jax.Array:
        outputs = state.apply_fn(parameters, inputs)
        return jnp.mean((outputs - jnp.sum(inputs, axis=-1, keepdims=True)) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def digest(parameters: Any) -> str:
    sha256 = hashlib.sha256()
    leaves = jax.tree_util.tree_leaves_with_path(parameters)
    for _, array in sorted((jax.tree_util.keystr(path), array) for path, array in leaves):
        sha256.update(np.asarray(array).tobytes())
    return sha256.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=40, help="steps between two saves")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    arguments = parser.parse_args()

    folder = arguments.workdir.absolute()
    state = checkpoints.restore_checkpoint(folder, initial())
    for step in range(int(state.step) + 1, arguments.steps + 1):
        began = time.monotonic()
        state, loss = train_step(state)
        print(f"step: {step}, loss: {float(loss):.4f}")
        time.sleep(max(0.0, began + arguments.step_seconds - time.monotonic()))
        if step % arguments.every == 0:
            checkpoints.save_checkpoint(folder, state, step, keep=3)
    print("parameters sha256:", digest(state.params))


if __name__ == "__main__":
    main()
