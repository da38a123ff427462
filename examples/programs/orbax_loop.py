# /// script
# requires-python = ">=3.11"
# dependencies = ["jax==0.10.2", "optax==0.2.8", "orbax-checkpoint==0.12.8"]
# ///
"""A plain JAX loop that saves with Orbax's `CheckpointManager`.

supervise run -- python examples/programs/orbax_loop.py --workdir out

Orbax commits `out/checkpoints/N`, in the background; the loop goes on from the newest one.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

WIDTH, LAYERS, BATCH = 64, 2, 16
optimizer = optax.adamw(1e-3)


def initial() -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0), LAYERS)
    parameters = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys]
    return {"parameters": parameters, "optimizer": optimizer.init(parameters)}


def loss_of(parameters: list[jax.Array], batch: jax.Array) -> jax.Array:
    hidden = batch
    for layer in parameters:
        hidden = jax.nn.gelu(hidden @ layer) + hidden
    return jnp.mean((hidden - jnp.roll(batch, 1, axis=-1)) ** 2)


@jax.jit
def train_step(state: dict[str, Any], step: int) -> tuple[dict[str, Any], jax.Array]:
    batch = jax.random.normal(jax.random.key(step), (BATCH, WIDTH))
    loss, gradients = jax.value_and_grad(loss_of)(state["parameters"], batch)
    updates, moments = optimizer.update(gradients, state["optimizer"], state["parameters"])
    parameters = optax.apply_updates(state["parameters"], updates)
    return {"parameters": parameters, "optimizer": moments}, loss


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

    options = ocp.CheckpointManagerOptions(save_interval_steps=arguments.every, max_to_keep=3)
    folder = arguments.workdir.absolute() / "checkpoints"
    with ocp.CheckpointManager(folder, options=options) as manager:
        newest = manager.latest_step()
        if newest is None:
            first, state = 1, initial()
        else:
            restore = ocp.args.StandardRestore(jax.eval_shape(initial))
            first, state = newest + 1, manager.restore(newest, args=restore)
        for step in range(first, arguments.steps + 1):
            began = time.monotonic()
            state, loss = train_step(state, step)
            print(f"step {step} loss {float(loss):.4f}")
            time.sleep(max(0.0, began + arguments.step_seconds - time.monotonic()))
            manager.save(step, args=ocp.args.StandardSave(state))
    print("parameters sha256:", digest(state["parameters"]))


if __name__ == "__main__":
    main()
