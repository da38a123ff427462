# /// script
# requires-python = ">=3.11"
# dependencies = ["equinox==0.13.8", "jax==0.10.2", "numpy==2.4.6", "optax==0.2.8"]
# ///
"""A tiny network in equinox, trained by a plain loop.

supervise run -- python examples/programs/equinox_loop.py --workdir out

Each save is one file, `out/state-N.eqx`, written by `tree_serialise_leaves`.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

BATCH, WIDTH = 32, 32

optimizer = optax.adamw(1e-3)


class State(NamedTuple):
    model: eqx.nn.MLP
    optimizer: optax.OptState


def initial() -> State:
    model = eqx.nn.MLP(WIDTH, WIDTH, width_size=64, depth=2, key=jax.random.key(0))
    return State(model, optimizer.init(eqx.filter(model, eqx.is_array)))


def loss_of(model: eqx.nn.MLP, batch: jax.Array) -> jax.Array:
    return jnp.mean((jax.vmap(model)(batch) - jnp.roll(batch, 1, axis=-1)) ** 2)


@eqx.filter_jit
def train_step(state: State, step: jax.Array) -> tuple[State, jax.Array]:
    batch = jax.random.normal(jax.random.key(step), (BATCH, WIDTH))
    loss, gradients = eqx.filter_value_and_grad(loss_of)(state.model, batch)
    parameters = eqx.filter(state.model, eqx.is_array)
    updates, after = optimizer.update(gradients, state.optimizer, parameters)
    return State(eqx.apply_updates(state.model, updates), after), loss


def save(state: State, path: Path) -> None:
    """A save that is cut off never gets the name of a whole one."""
    unfinished = path.with_name(path.name + ".tmp")
    with unfinished.open("wb") as file:
        eqx.tree_serialise_leaves(file, state)
    unfinished.replace(path)


def newest(workdir: Path) -> tuple[int, Path | None]:
    saved = {int(path.stem.removeprefix("state-")): path for path in workdir.glob("state-*.eqx")}
    step = max(saved, default=0)
    return step, saved.get(step)


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

    arguments.workdir.mkdir(parents=True, exist_ok=True)
    state = initial()
    begin, path = newest(arguments.workdir)
    if path is not None:
        state = eqx.tree_deserialise_leaves(path, state)
    for step in range(begin + 1, arguments.steps + 1):
        began = time.monotonic()
        state, loss = train_step(state, jnp.asarray(step))
        print(f"{step=}, loss={loss.item():.4f}")
        if step % arguments.every == 0 or step == arguments.steps:
            save(state, arguments.workdir / f"state-{step}.eqx")
        time.sleep(max(0.0, began + arguments.step_seconds - time.monotonic()))
    print("parameters sha256:", digest(eqx.filter(state.model, eqx.is_array)))


if __name__ == "__main__":
    main()
