"""One optimizer step and one evaluation step, over a global batch in micro-batches.

Gradients are the mean over all micro-batches, so the number of them changes the result only by
rounding. Both steps take tokens [accumulation, sequences, length + 1].
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from trainer.mesh import batch_sharding, replicated
from trainer.state import Blueprint, Params, Rngs, TrainState

Metrics = dict[str, jax.Array]


def train_step(
    blueprint: Blueprint, state: TrainState, tokens: jax.Array
) -> tuple[TrainState, Metrics]:
    """The state after one more step, and this step's loss, gradient norm and learning rate, and
    whether loss and gradients are `finite`."""

    def add(total: tuple[Any, jax.Array, Rngs], micro: jax.Array) -> tuple[Any, None]:
        gradients, loss, rngs = total
        differentiate = jax.value_and_grad(_train_loss, argnums=1, has_aux=True)
        (one_loss, rngs), one = differentiate(blueprint.graph, state.params, rngs, micro)
        return (jax.tree.map(jnp.add, gradients, one), loss + one_loss, rngs), None

    zeros = jax.lax.with_sharding_constraint(
        jax.tree.map(jnp.zeros_like, state.params), blueprint.shardings.params
    )
    (gradients, loss, rngs), _ = jax.lax.scan(add, (zeros, jnp.float32(0), state.rngs), tokens)
    gradients = jax.tree.map(lambda total: total / len(tokens), gradients)
    rate = blueprint.schedule(state.step)
    updates, optimizer = blueprint.transformation.update(gradients, state.optimizer, state.params)
    scaled = jax.tree.map(lambda one: rate * one, updates)
    params: Any = optax.apply_updates(state.params, scaled)
    metrics = {
        "loss": loss / len(tokens),
        "gradient_norm": optax.tree.norm(gradients),
        "learning_rate": jnp.asarray(rate),
    }
    metrics["finite"] = all_finite(metrics)
    return TrainState(state.step + 1, params, optimizer, rngs), metrics


def all_finite(tree: Any) -> jax.Array:
    """Whether no number in `tree` is NaN or Inf; one answer from the devices."""
    floating = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in floating]).all()


def evaluation_loss(blueprint: Blueprint, state: TrainState, tokens: jax.Array) -> jax.Array:
    """The mean loss of a global batch, without dropout, in nats a token."""
    model = nnx.merge(blueprint.graph, state.params, state.rngs)
    return jnp.mean(jax.lax.map(lambda micro: _loss(model, micro, deterministic=True), tokens))


def _train_loss(
    graph: nnx.GraphDef[Any], params: Params, rngs: Rngs, tokens: jax.Array
) -> tuple[jax.Array, Rngs]:
    model = nnx.merge(graph, params, rngs, copy=True)
    loss = _loss(model, tokens, deterministic=False)
    return loss, nnx.state(model, nnx.RngState)


def _loss(model: Any, tokens: jax.Array, *, deterministic: bool) -> jax.Array:
    logits = model(tokens[:, :-1], deterministic=deterministic)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return jnp.mean(losses)


def jit_train_step(blueprint: Blueprint) -> Any:
    """`train_step` for jax: (state, tokens) to (state, metrics); the state given is used up."""
    return jax.jit(
        lambda state, tokens: train_step(blueprint, state, tokens),
        in_shardings=(blueprint.shardings, batch_sharding(blueprint.mesh)),
        out_shardings=(blueprint.shardings, replicated(blueprint.mesh)),
        donate_argnums=0,
    )


def jit_skipped_step(blueprint: Blueprint) -> Any:
    """For jax: the step count after a step whose batch is passed over."""
    return jax.jit(lambda step: step + 1, out_shardings=blueprint.shardings.step)


def jit_all_finite(blueprint: Blueprint) -> Any:
    """`all_finite` of a state, for jax. It reads the whole state, so it is for saves: each step
    answers for its loss and gradients, which cost nothing more."""
    return jax.jit(
        all_finite,
        in_shardings=(blueprint.shardings,),
        out_shardings=replicated(blueprint.mesh),
    )


def jit_evaluation_loss(blueprint: Blueprint) -> Any:
    """`evaluation_loss` for jax: (state, tokens) to the loss."""
    return jax.jit(
        lambda state, tokens: evaluation_loss(blueprint, state, tokens),
        in_shardings=(blueprint.shardings, batch_sharding(blueprint.mesh)),
        out_shardings=replicated(blueprint.mesh),
    )
