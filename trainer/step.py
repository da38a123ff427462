"""One optimizer step and one evaluation step, over a global batch in micro-batches.

Gradients are the mean over all micro-batches, and a sequence's dropout key follows from its index
in the global batch. So the number of micro-batches changes the result only by rounding, and with
`determinism: {elastic: bitwise}` not at all (`deterministic_reduction`). Both steps take tokens
[accumulation, sequences, length + 1].
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from trainer import deterministic_reduction
from trainer.deterministic_reduction import Witness
from trainer.mesh import AXES, batch_sharding, replicated
from trainer.objective import model_inputs
from trainer.train_state import Params, TrainState, TrainStateSpec
from trainer.weights_fingerprint import lanes_of

Metrics = dict[str, jax.Array]


def train_step(
    spec: TrainStateSpec, state: TrainState, tokens: jax.Array
) -> tuple[TrainState, Metrics]:
    """Return the state after one more step, and the step's metrics: `loss` (nats per token),
    `gradient_norm`, `learning_rate`, those of the objective, and `finite`: whether all are."""
    return _updated(spec, state, _differentiated(spec, state, tokens))


def witnessed_step(
    spec: TrainStateSpec, state: TrainState, tokens: jax.Array, shift: jax.Array
) -> tuple[TrainState, Metrics, Witness]:
    """Return what `train_step` returns, in bitwise mode, and the witness of its gradients. For
    `shift`, and the `tokens` of each device, see `deterministic_reduction.witnessed_mean`."""
    differentiate, zeros = _differentiation(spec, state, tokens)
    found, witness = deterministic_reduction.witnessed_mean(
        differentiate, tokens, zeros, shift, spec.wrong_places
    )
    return *_updated(spec, state, found), witness


def _updated(
    spec: TrainStateSpec,
    state: TrainState,
    differentiated: tuple[tuple[jax.Array, Metrics], Params],
) -> tuple[TrainState, Metrics]:
    (loss, measured), gradients = differentiated
    rate = spec.schedule(state.step)
    updates, optimizer = spec.transformation.update(gradients, state.optimizer, state.params)
    scaled = jax.tree.map(lambda one: rate * one, updates)
    params: Any = optax.apply_updates(state.params, scaled)
    metrics = {
        "loss": loss,
        "gradient_norm": optax.tree.norm(gradients),
        "learning_rate": jnp.asarray(rate),
        **measured,
    }
    metrics["finite"] = all_finite(metrics)
    return replace(state, step=state.step + 1, params=params, optimizer=optimizer), metrics


def loss_and_gradients(
    spec: TrainStateSpec, state: TrainState, tokens: jax.Array
) -> tuple[jax.Array, Params]:
    """Return the mean loss of a global batch, in nats per token, and its gradients."""
    (loss, _), gradients = _differentiated(spec, state, tokens)
    return loss, gradients


def _differentiated(
    spec: TrainStateSpec, state: TrainState, tokens: jax.Array
) -> tuple[tuple[jax.Array, Metrics], Params]:
    """Return the mean loss of a global batch with the metrics of the objective, and gradients."""
    result: tuple[tuple[jax.Array, Metrics], Params]
    differentiate, zeros = _differentiation(spec, state, tokens)
    result = _mean(spec)(differentiate, tokens, zeros)
    return result


def _differentiation(
    spec: TrainStateSpec, state: TrainState, tokens: jax.Array
) -> tuple[Callable[[jax.Array, jax.Array], Any], Any]:
    """Return the function whose mean over micro-batches `_differentiated` returns, and zeros like
    its result."""
    scale = _scale(spec, tokens)

    def differentiate(micro: jax.Array, sequence_index: jax.Array) -> Any:
        keys = dropout_keys(spec, state.step, sequence_index)
        loss = jax.value_and_grad(partial(_loss, spec), has_aux=True)
        return loss(state.params, state.frozen, micro, keys, scale)

    nothing = jnp.float32(0), dict.fromkeys(spec.objective.metrics, jnp.float32(0))
    return differentiate, (nothing, _zeros(spec, state.params))


def dropout_keys(spec: TrainStateSpec, step: jax.Array, sequence_index: jax.Array) -> jax.Array:
    """Return the PRNG keys of the sequences with these indices in the global batch of the step
    after `step` steps."""
    key = jax.random.fold_in(jax.random.key(spec.config.seed), step)
    keys: jax.Array = jax.vmap(jax.random.fold_in, (None, 0))(key, sequence_index)
    return keys


def all_finite(tree: Any) -> jax.Array:
    """Whether no number in `tree` is NaN or Inf; a boolean scalar on the devices."""
    floating = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in floating]).all()


def evaluation_loss(spec: TrainStateSpec, state: TrainState, tokens: jax.Array) -> jax.Array:
    """Return the mean loss of a global batch, without dropout, in nats per token."""

    scale = _scale(spec, tokens)

    def measure(micro: jax.Array, _: jax.Array) -> jax.Array:
        return _loss(spec, state.params, state.frozen, micro, None, scale)[0]

    loss: jax.Array = _mean(spec)(measure, tokens, jnp.float32(0))
    return loss


def _loss(
    spec: TrainStateSpec,
    params: Params,
    frozen: Params,
    tokens: jax.Array,
    keys: jax.Array | None,
    scale: jax.Array | None,
) -> tuple[jax.Array, Metrics]:
    """Return the loss of a micro-batch, which is the mean over all its positions, times `scale`;
    and the means of what else the objective measures."""
    objective = spec.objective
    inputs, documents = model_inputs(objective, tokens), objective.documents(tokens)
    logits = spec.model(params, frozen)(inputs, row_keys(spec, keys), documents)
    losses, measured = objective.losses(logits, reference_logits(spec, frozen, tokens), tokens)
    loss = jnp.mean(losses)
    metrics = {name: jnp.mean(measured[name]) for name in objective.metrics}
    return (loss if scale is None else loss * scale), metrics


def row_keys(spec: TrainStateSpec, keys: jax.Array | None) -> jax.Array | None:
    """Return a PRNG key for each row that the model reads, from one per example."""
    rows = spec.objective.rows
    if keys is None or rows == 1:
        return keys
    split: jax.Array = jax.vmap(lambda key: jax.random.split(key, rows))(keys).reshape(-1)
    return split


def reference_logits(spec: TrainStateSpec, frozen: Params, tokens: jax.Array) -> jax.Array | None:
    """Return the logits of the reference; None: the objective does not read it."""
    if not spec.objective.reads_reference:
        return None
    inputs, documents = model_inputs(spec.objective, tokens), spec.objective.documents(tokens)
    return spec.reference(frozen)(inputs, None, documents)


def _scale(spec: TrainStateSpec, tokens: jax.Array) -> jax.Array | None:
    """Return the factor that makes the mean over all positions of the global batch one over those
    that are learned, however the batch is cut; None: all are."""
    learned = spec.objective.num_targets(tokens)
    if learned is None:
        return None
    positions = tokens.size - tokens.size // tokens.shape[-1]
    if spec.config.is_bitwise:
        learned, positions = deterministic_reduction.sums((learned, positions))
    scale: jax.Array = jnp.float32(positions) / jnp.maximum(learned, 1).astype(jnp.float32)
    return scale


def _mean(spec: TrainStateSpec) -> Callable[..., Any]:
    """Return the function that computes means over micro-batches, with or without fixed order."""
    if not spec.config.is_bitwise:
        return _mean_of_micro_batches
    return partial(deterministic_reduction.mean, wrong=spec.wrong_places)


def _mean_of_micro_batches(
    function: Callable[[jax.Array, jax.Array], Any], tokens: jax.Array, zeros: Any
) -> Any:
    """Compute what `deterministic_reduction.mean` does, in an order that XLA chooses: each
    micro-batch is sharded over all devices. Shapes are global: `tokens` [accumulation, sequences,
    length + 1]."""
    accumulation, sequences, _ = tokens.shape
    sequence_index = jnp.arange(accumulation * sequences).reshape(accumulation, sequences)

    def add(total: Any, micro_batch: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*micro_batch)), None

    total, _ = jax.lax.scan(add, zeros, (tokens, sequence_index))
    return jax.tree.map(lambda one: one / accumulation, total)


def _zeros(spec: TrainStateSpec, params: Params) -> Params:
    """Return zeros to accumulate gradients in; with GSPMD they are sharded like the parameters."""
    zeros: Params = jax.tree.map(jnp.zeros_like, params)
    if not spec.config.is_bitwise:
        zeros = jax.lax.with_sharding_constraint(zeros, spec.shardings.params)
    return zeros


def jit_train_step(spec: TrainStateSpec) -> Any:
    """Return the jitted `train_step`: (state, tokens) to (state, metrics). It donates the state."""
    return jax.jit(
        _on_devices(spec, train_step),
        in_shardings=(spec.shardings, batch_sharding(spec.mesh)),
        out_shardings=(spec.shardings, replicated(spec.mesh)),
        donate_argnums=0,
    )


def jit_step_of_leaves(spec: TrainStateSpec) -> Any:
    """Return `jit_train_step` of the leaves of a state: (leaves, tokens) to (leaves, metrics)."""
    tree = jax.tree.structure(spec.abstract)
    step = _on_devices(spec, train_step)

    def of_leaves(leaves: list[jax.Array], tokens: jax.Array) -> tuple[list[jax.Array], Metrics]:
        state, metrics = step(jax.tree.unflatten(tree, leaves), tokens)
        return jax.tree.leaves(state), metrics

    shardings = jax.tree.leaves(spec.shardings)
    return jax.jit(
        of_leaves,
        in_shardings=(shardings, batch_sharding(spec.mesh)),
        out_shardings=(shardings, replicated(spec.mesh)),
        donate_argnums=0,
    )


def jit_witnessed_step(spec: TrainStateSpec) -> Any:
    """Return the jitted `witnessed_step`: (state, tokens, shift) to (state, metrics, witness). It
    donates nothing."""
    whole = replicated(spec.mesh)
    return jax.jit(
        deterministic_reduction.on_each_device(
            spec.mesh, partial(witnessed_step, spec), whole_too=1
        ),
        in_shardings=(spec.shardings, batch_sharding(spec.mesh), whole),
        out_shardings=(spec.shardings, whole, whole),
    )


def jit_digests_of_copies(spec: TrainStateSpec) -> Any:
    """Return a jitted function of a state, in bitwise mode: the digest of each device's copy,
    [devices, lanes]."""

    def each(state: TrainState) -> jax.Array:
        copies: jax.Array = jax.lax.all_gather(lanes_of(jax.tree.leaves(state)), AXES)
        return copies

    whole = PartitionSpec()
    return jax.jit(
        jax.shard_map(each, mesh=spec.mesh, in_specs=whole, out_specs=whole, check_vma=False),
        in_shardings=(spec.shardings,),
        out_shardings=replicated(spec.mesh),
    )


def jit_loss_and_gradients(spec: TrainStateSpec) -> Any:
    """Return the jitted `loss_and_gradients`: (state, tokens) to both. It donates nothing."""
    return jax.jit(
        _on_devices(spec, loss_and_gradients),
        in_shardings=(spec.shardings, batch_sharding(spec.mesh)),
        out_shardings=(replicated(spec.mesh), spec.shardings.params),
    )


def jit_skipped_step(spec: TrainStateSpec) -> Any:
    """Return the jitted increment of the step count, for a step whose batch is skipped."""
    return jax.jit(lambda step: step + 1, out_shardings=spec.shardings.step)


def jit_all_finite(spec: TrainStateSpec) -> Any:
    """Return the jitted `all_finite` of a whole state. It reads the whole state, so it is used
    before saves only; every step checks its loss and gradient norm, which costs nothing."""
    return jax.jit(
        all_finite,
        in_shardings=(spec.shardings,),
        out_shardings=replicated(spec.mesh),
    )


def jit_evaluation_loss(spec: TrainStateSpec) -> Any:
    """Return the jitted `evaluation_loss`: (state, tokens) to the loss."""
    return jax.jit(
        _on_devices(spec, evaluation_loss),
        in_shardings=(spec.shardings, batch_sharding(spec.mesh)),
        out_shardings=replicated(spec.mesh),
    )


def _on_devices(spec: TrainStateSpec, function: Callable[..., Any]) -> Any:
    """Return `function` of (state, tokens) for all devices: sharded by GSPMD (jit), or in bitwise
    mode by our own shard_map."""
    bound = partial(function, spec)
    if spec.config.is_bitwise:
        return deterministic_reduction.on_each_device(spec.mesh, bound)
    return bound
