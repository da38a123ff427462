# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "clu==0.0.12",
#   "flax==0.12.8",
#   "jax==0.10.2",
#   "numpy==2.4.6",
#   "optax==0.2.8",
#   "orbax-checkpoint==0.12.8",
#   "tensorboard==2.20.0",
#   "tensorflow-cpu==2.21.0",
# ]
# ///
"""A tiny Transformer in flax nnx, trained by a loop like that of flax's example `gemma`.

supervise run -- python examples/programs/flax_gemma.py --workdir out

As in that example, `flax.training.checkpoints` saves to `out/checkpoint_N` by Orbax and goes on
from the newest one, and the metric writers of CLU print the loss and write TensorBoard's files.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from clu import metric_writers, periodic_actions
from flax import nnx, struct
from flax.training import checkpoints, train_state

VOCABULARY, BATCH, LENGTH, WIDTH = 256, 8, 32, 32


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([nnx.RMSNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, hidden: jax.Array, mask: jax.Array) -> jax.Array:
        hidden = hidden + self.attention(self.norms[0](hidden), mask=mask)
        return hidden + self.down(nnx.gelu(self.up(self.norms[1](hidden))))


class Transformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        hidden = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            hidden = block(hidden, nnx.make_causal_mask(tokens))
        return self.tokens.attend(hidden)


class TrainState(train_state.TrainState):
    graphdef: nnx.GraphDef[Transformer] = struct.field(pytree_node=False)


def initial() -> TrainState:
    graphdef, parameters = nnx.split(Transformer(nnx.Rngs(0)), nnx.Param)
    return TrainState.create(
        apply_fn=graphdef.apply, params=parameters, tx=optax.adamw(1e-3), graphdef=graphdef
    )


def batch_of(step: int) -> np.ndarray:
    """Counting up from a random number: each batch depends on its number alone."""
    starts = np.random.default_rng(step).integers(0, VOCABULARY - LENGTH, (BATCH, 1))
    return (starts + np.arange(LENGTH)).astype(np.int32)


@partial(jax.jit, donate_argnums=0)
def train_step(state: TrainState, tokens: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss_of(parameters: nnx.State) -> jax.Array:
        logits = nnx.merge(state.graphdef, parameters)(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


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

    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    workdir = str(arguments.workdir.absolute())
    state = checkpoints.restore_checkpoint(workdir, initial())
    writer = metric_writers.create_default_writer(workdir)
    report = periodic_actions.ReportProgress(num_train_steps=arguments.steps, writer=writer)
    with metric_writers.ensure_flushes(writer):
        for step in range(int(state.step) + 1, arguments.steps + 1):
            began = time.monotonic()
            state, loss = train_step(state, batch_of(step))
            report(step)
            if step % 5 == 0:
                writer.write_scalars(step, {"train_loss": loss.item()})
            if step % arguments.every == 0 or step == arguments.steps:
                logging.info("Saving checkpoint step %d.", step)
                checkpoints.save_checkpoint_multiprocess(workdir, state, step)
            time.sleep(max(0.0, began + arguments.step_seconds - time.monotonic()))
    print("parameters sha256:", digest(state.params))


if __name__ == "__main__":
    main()
