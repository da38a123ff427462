# /// script
# requires-python = "==3.12.*"
# dependencies = [
#   "marin-levanter==0.2.227.dev40316220070",
#   "equinox==0.13.8",
#   "jax==0.10.2",
#   "optax==0.2.6",
#   "numpy==2.4.6",
#   "tqdm==4.67.1",
# ]
# ///
"""A tiny network in equinox, trained by a loop that saves with the `Checkpointer` of Levanter.

supervise run -- python examples/programs/levanter_checkpointer.py --workdir out

It saves to `out/checkpoints/step-N`, and goes on from the newest one that is complete.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from levanter.checkpoint import (
    Checkpointer,
    CheckpointInterval,
    discover_latest_checkpoint,
    load_checkpoint,
)
from tqdm import tqdm

BATCH, WIDTH = 32, 32

optimizer = optax.adamw(1e-3)


class State(eqx.Module):
    step: jax.Array
    model: eqx.nn.MLP
    optimizer: optax.OptState


def initial() -> State:
    model = eqx.nn.MLP(WIDTH, WIDTH, width_size=64, depth=2, key=jax.random.key(0))
    return State(jnp.asarray(0), model, optimizer.init(eqx.filter(model, eqx.is_array)))


def loss_of(model: eqx.nn.MLP, batch: jax.Array) -> jax.Array:
    return jnp.mean((jax.vmap(model)(batch) - jnp.roll(batch, 1, axis=-1)) ** 2)


@eqx.filter_jit
def train_step(state: State) -> tuple[State, jax.Array]:
    batch = jax.random.normal(jax.random.key(state.step), (BATCH, WIDTH))
    loss, gradients = eqx.filter_value_and_grad(loss_of)(state.model, batch)
    parameters = eqx.filter(state.model, eqx.is_array)
    updates, after = optimizer.update(gradients, state.optimizer, parameters)
    return State(state.step + 1, eqx.apply_updates(state.model, updates), after), loss


def digest(parameters: Any) -> str:
    sha256 = hashlib.sha256()
    for path, array in sorted(
        (jax.tree_util.keystr(path), array)
        for path, array in jax.tree_util.tree_leaves_with_path(parameters)
    ):
        sha256.update(path.encode() + np.asarray(array).tobytes())
    return sha256.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=10, help="steps between two saves")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    arguments = parser.parse_args()

    folder = arguments.workdir.absolute() / "checkpoints"
    state = initial()
    newest = discover_latest_checkpoint(folder)
    if newest is not None:
        state = load_checkpoint(state, newest)
    checkpointer = Checkpointer(folder, None, [CheckpointInterval(every=arguments.every)])
    begin = int(state.step)
    with tqdm(total=arguments.steps, initial=begin, desc="train") as bar:
        for step in range(begin + 1, arguments.steps + 1):
            began = time.monotonic()
            state, loss = train_step(state)
            bar.set_postfix(loss=loss.item())
            bar.update()
            checkpointer.on_step(tree=state, step=step, force=step == arguments.steps)
            time.sleep(max(0.0, began + arguments.step_seconds - time.monotonic()))
    checkpointer.wait_until_finished()
    print("parameters sha256:", digest(eqx.filter(state.model, eqx.is_array)))


if __name__ == "__main__":
    main()
