"""One optimizer step and one evaluation step, over a global batch in micro-batches.

Gradients are the mean over all micro-batches, and dropout knows a sequence by its place in the
global batch, so the number of micro-batches changes the result only by rounding; with
`determinism: {elastic: bitwise}` not even by that: see `deterministic_reduction`. Both steps take
tokens [accumulation, sequences, length + 1].
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from trainer import deterministic_reduction
from trainer.mesh import batch_sharding, replicated
from trainer.train_state import Params, TrainState, TrainStateSpec

Metrics = dict[str, jax.Array]


def train_step(
    spec: TrainStateSpec, state: TrainState, tokens: jax.Array
) -> tuple[TrainState, Metrics]:
    """The state after one more step, and this step's loss, gradient norm and learning rate, and
    whether loss and gradients are `finite`."""
    key = jax.random.fold_in(jax.random.key(spec.config.seed), state.step)

    def differentiate(micro: jax.Array, places: jax.Array) -> tuple[jax.Array, Params]:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, places)
        loss = jax.value_and_grad(partial(_loss, spec.graph))
        result: tuple[jax.Array, Params] = loss(state.params, micro, keys)
        return result

    zeros = jnp.float32(0), _zeros(spec, state.params)
    loss, gradients = _mean(spec)(differentiate, tokens, zeros)
    rate = spec.schedule(state.step)
    updates, optimizer = spec.transformation.update(gradients, state.optimizer, state.params)
    scaled = jax.tree.map(lambda one: rate * one, updates)
    params: Any = optax.apply_updates(state.params, scaled)
    metrics = {
        "loss": loss,
        "gradient_norm": optax.tree.norm(gradients),
        "learning_rate": jnp.asarray(rate),
    }
    metrics["finite"] = all_finite(metrics)
    return TrainState(state.step + 1, params, optimizer), metrics


def all_finite(tree: Any) -> jax.Array:
    """Whether no number in `tree` is NaN or Inf; one answer from the devices."""
    floating = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in floating]).all()


def evaluation_loss(spec: TrainStateSpec, state: TrainState, tokens: jax.Array) -> jax.Array:
    """The mean loss of a global batch, without dropout, in nats a token."""

    def measure(micro: jax.Array, _: jax.Array) -> jax.Array:
        return _loss(spec.graph, state.params, micro, None)

    loss: jax.Array = _mean(spec)(measure, tokens, jnp.float32(0))
    return loss


def _loss(
    graph: nnx.GraphDef[Any], params: Params, tokens: jax.Array, keys: jax.Array | None
) -> jax.Array:
    logits = nnx.merge(graph, params)(tokens[:, :-1], keys)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return jnp.mean(losses)


def _mean(spec: TrainStateSpec) -> Callable[..., Any]:
    """What takes the mean of a function over micro-batches."""
    return deterministic_reduction.mean if spec.config.is_bitwise else _mean_of_micro_batches


def _mean_of_micro_batches(
    function: Callable[[jax.Array, jax.Array], Any], tokens: jax.Array, zeros: Any
) -> Any:
    """As `deterministic_reduction.mean`, of micro-batches that lie on all devices together: it is
    left to the compiler in which order they add up."""
    accumulation, sequences, _ = tokens.shape
    places = jnp.arange(accumulation * sequences).reshape(accumulation, sequences)

    def add(total: Any, turn: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*turn)), None

    total, _ = jax.lax.scan(add, zeros, (tokens, places))
    return jax.tree.map(lambda one: one / accumulation, total)


def _zeros(spec: TrainStateSpec, params: Params) -> Params:
    """What gradients are added to; where the compiler shares out the work, sharded as they are."""
    zeros: Params = jax.tree.map(jnp.zeros_like, params)
    if not spec.config.is_bitwise:
        zeros = jax.lax.with_sharding_constraint(zeros, spec.shardings.params)
    return zeros


def jit_train_step(spec: TrainStateSpec) -> Any:
    """`train_step` for jax: (state, tokens) to (state, metrics); the state given is used up."""
    return jax.jit(
        _on_devices(spec, train_step),
        in_shardings=(spec.shardings, batch_sharding(spec.mesh)),
        out_shardings=(spec.shardings, replicated(spec.mesh)),
        donate_argnums=0,
    )


def jit_skipped_step(spec: TrainStateSpec) -> Any:
    """For jax: the step count after a step whose batch is passed over."""
    return jax.jit(lambda step: step + 1, out_shardings=spec.shardings.step)


def jit_all_finite(spec: TrainStateSpec) -> Any:
    """`all_finite` of a state, for jax. It reads the whole state, so it is for saves: each step
    answers for its loss and gradients, which cost nothing more."""
    return jax.jit(
        all_finite,
        in_shardings=(spec.shardings,),
        out_shardings=replicated(spec.mesh),
    )


def jit_evaluation_loss(spec: TrainStateSpec) -> Any:
    """`evaluation_loss` for jax: (state, tokens) to the loss."""
    return jax.jit(
        _on_devices(spec, evaluation_loss),
        in_shardings=(spec.shardings, batch_sharding(spec.mesh)),
        out_shardings=replicated(spec.mesh),
    )


def _on_devices(spec: TrainStateSpec, function: Callable[..., Any]) -> Any:
    """`function` of (state, tokens) over all devices: shared out by the compiler, or by us."""
    bound = partial(function, spec)
    if spec.config.is_bitwise:
        return deterministic_reduction.on_each_device(spec.mesh, bound)
    return bound
