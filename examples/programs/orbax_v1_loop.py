# /// script
# requires-python = ">=3.11"
# dependencies = ["jax==0.10.2", "optax==0.2.8", "orbax-checkpoint==0.12.8"]
# ///
"""A plain JAX loop that saves with the `Checkpointer` of Orbax's API v1.

supervise run -- python examples/programs/orbax_v1_loop.py --workdir out

Orbax commits `out/checkpoints/N`; the loop goes on from the newest one.
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
from orbax.checkpoint import v1 as ocp

WIDTH, CLASSES, BATCH = 32, 10, 64
optimizer = optax.sgd(0.1, momentum=0.9)


def initial() -> dict[str, Any]:
    weights = jax.random.normal(jax.random.key(0), (WIDTH, CLASSES)) / WIDTH**0.5
    parameters = {"weights": weights, "bias": jnp.zeros(CLASSES)}
    return {"parameters": parameters, "optimizer": optimizer.init(parameters)}


def loss_of(parameters: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    logits = images @ parameters["weights"] + parameters["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def train_step(state: dict[str, Any], step: int) -> tuple[dict[str, Any], jax.Array]:
    images = jax.random.normal(jax.random.key(step), (BATCH, WIDTH))
    labels = jnp.argmax(images[:, :CLASSES], axis=-1)
    loss, gradients = jax.value_and_grad(loss_of)(state["parameters"], images, labels)
    updates, moments = optimizer.update(gradients, state["optimizer"], state["parameters"])
    parameters = optax.apply_updates(state["parameters"], updates)
    return {"parameters": parameters, "optimizer": moments}, loss


def digest(parameters: dict[str, jax.Array]) -> str:
    sha256 = hashlib.sha256()
    for name in sorted(parameters):
        sha256.update(np.asarray(parameters[name]).tobytes())
    return sha256.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=40, help="steps between two saves")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    arguments = parser.parse_args()

    training = ocp.training
    with training.Checkpointer(
        arguments.workdir.absolute() / "checkpoints",
        save_decision_policy=training.save_decision_policies.FixedIntervalPolicy(arguments.every),
        preservation_policy=training.preservation_policies.LatestN(3),
    ) as checkpointer:
        if checkpointer.latest is None:
            first, state = 1, initial()
        else:
            first = checkpointer.latest.step + 1
            state = checkpointer.load(abstract_state=jax.eval_shape(initial))
        for step in range(first, arguments.steps + 1):
            began = time.monotonic()
            state, loss = train_step(state, step)
            if step % 10 == 0:
                print(f"{{'step': {step}, 'loss': {float(loss):.4f}}}")
            time.sleep(max(0.0, began + arguments.step_seconds - time.monotonic()))
            checkpointer.save(step, state)
    print("parameters sha256:", digest(state["parameters"]))


if __name__ == "__main__":
    main()
