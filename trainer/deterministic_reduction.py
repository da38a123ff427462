"""A mean over the global batch whose bits do not depend on how many devices compute it.

Floating-point addition is not associative: another order gives other last bits, and a collective
sum over 8 devices groups the terms differently than one over 4. So the batch is always cut into the
same micro-batches, each is computed by one device alone, and the results are added one by one in
batch order, whichever device computed them. Everything after the mean is computed by every device
for itself on whole arrays, because a norm of sharded arrays would be grouped by shards.

In each accumulation step every device computes one micro-batch. An all-to-all gives every device
its own slice of all results, which it adds to its slice of the sum; at the end the slices are
gathered. Peak memory is about three results, on any number of devices.

The same operations give the same bits only if they compile to the same code. So the program looks
the same to the compiler for every number of devices, except for the collectives. A single device is
excluded: XLA compiles its programs with other passes (jax 0.10.2 on CPU turns the division in
softmax into a multiplication there), see `rungs.ladder`. And on CPU the sums in a matrix product
are split among threads; by default there are as many threads as devices.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec

from supervisor.config.training.resolved import InitConfig
from trainer.mesh import AXES, batch_sharding

_THREADS = "PJRT_NPROC"
"""Variable that sets the number of XLA's CPU threads; XLA starts at least one per device."""


def same_threads(init: InitConfig) -> None:
    """Fix the number of XLA's CPU threads, so that it is the same on every rung; only in bitwise
    mode. Call it before the backend is initialised."""
    if init.is_bitwise and init.loop.micro_batch_size is not None:
        os.environ[_THREADS] = str(init.loop.global_batch_size // init.loop.micro_batch_size)


def on_each_device(mesh: Mesh, function: Callable[[Any, jax.Array], Any]) -> Any:
    """Return `function` of (state, tokens) under shard_map: each device gets the whole state and
    its own part of the tokens. Its results must be equal on all devices, which `mean` ensures."""
    whole, part = PartitionSpec(), batch_sharding(mesh).spec
    return jax.shard_map(
        function, mesh=mesh, in_specs=(whole, part), out_specs=whole, check_vma=False
    )


def sums(numbers: Any) -> Any:
    """Return the sums of whole `numbers` over all devices, which have no order. Call it inside
    `on_each_device`."""
    return jax.lax.psum(numbers, AXES)


def mean(function: Callable[[jax.Array, jax.Array], Any], tokens: jax.Array, zeros: Any) -> Any:
    """Return the mean of `function` over the micro-batches of all devices. Call it inside
    `on_each_device`.

    `tokens` [accumulation, sequences, length + 1] are this device's micro-batches. `function` gets
    one of them and the indices [sequences] of its sequences in the global batch, and returns
    float32 arrays with the shapes of `zeros`.
    """
    accumulation, sequences, _ = tokens.shape
    device, count = jax.lax.axis_index(AXES), jax.lax.axis_size(AXES)
    num_micro_batches = accumulation * count
    like, restore = ravel_pytree(zeros)
    padding = -like.size % num_micro_batches
    tokens = jnp.concatenate([tokens, tokens[:1]])  # XLA does not index an array of length 1

    def add(step: jax.Array, total: jax.Array) -> jax.Array:  # step: of the accumulation
        places = (step * count + device) * sequences + jnp.arange(sequences)
        result, _ = ravel_pytree(jax.lax.optimization_barrier(function(tokens[step], places)))
        parts = jnp.pad(result, (0, padding)).reshape(count, -1)
        for one in jax.lax.all_to_all(parts, AXES, 0, 0):
            total = total + one
        return total

    nothing = jnp.full((like.size + padding) // count, -0.0, like.dtype)  # -0.0 + x is x for all x
    # XLA must not know the number of steps: it would unroll a loop of one step.
    unknown = jax.lax.optimization_barrier(jnp.int32(accumulation))
    total = jax.lax.fori_loop(0, unknown, add, nothing)
    whole = jax.lax.optimization_barrier(jax.lax.all_gather(total, AXES, tiled=True))
    return restore(whole[: like.size] / num_micro_batches)
