"""A mean over the global batch whose bits do not depend on how many devices compute it.

Adding floating-point numbers in another order gives other last bits, and a collective sum over 8
devices groups them otherwise than one over 4. So here the batch is always cut into the same
micro-batches, each is computed by one device alone, and what comes of them is added one after the
other, in their order in the batch, whichever device has computed it. What follows from the mean is
computed on whole arrays by every device for itself: a norm of sharded arrays is grouped by shards.

In each turn the devices compute one micro-batch each. An all-to-all gives every device its own part
of all the results, which it adds to its part of the sum; at the end the parts are gathered. So it
takes the room of about three results, on however few devices.

The same operations make the same bits only if they are compiled to the same code, so a program is
written to look the same to the compiler for each number of devices, but for what is exchanged. One
device alone is left out: XLA puts its programs through other passes (jax 0.10.2 on CPU turns the
division in softmax into a multiplication there), see `rungs.ladder`. And on CPU the sums in a
matrix product are split among threads, of which there are by default as many as devices.
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
"""For how many processors XLA on CPU starts threads; never fewer than there are devices."""


def same_threads(init: InitConfig) -> None:
    """Have as many threads on every rung, where that matters. Before the backend is initialised."""
    if init.is_bitwise and init.loop.micro_batch_size is not None:
        os.environ[_THREADS] = str(init.loop.global_batch_size // init.loop.micro_batch_size)


def on_each_device(mesh: Mesh, function: Callable[[Any, jax.Array], Any]) -> Any:
    """`function` of (state, tokens), computed by each device for itself on the whole state and its
    own part of the tokens. What it returns must be the same on all; `mean` makes it so."""
    whole, part = PartitionSpec(), batch_sharding(mesh).spec
    return jax.shard_map(
        function, mesh=mesh, in_specs=(whole, part), out_specs=whole, check_vma=False
    )


def mean(function: Callable[[jax.Array, jax.Array], Any], tokens: jax.Array, zeros: Any) -> Any:
    """The mean of `function` over the micro-batches of all devices; inside `on_each_device`.

    `tokens` [accumulation, sequences, length] are this device's micro-batches; `function` gets one
    of them and the places [sequences] of its sequences in the global batch, and returns float32
    arrays such as `zeros`.
    """
    accumulation, sequences, _ = tokens.shape
    device, count = jax.lax.axis_index(AXES), jax.lax.axis_size(AXES)
    number = accumulation * count
    like, restore = ravel_pytree(zeros)
    padding = -like.size % number
    tokens = jnp.concatenate([tokens, tokens[:1]])  # an array of one turn would not be indexed

    def add(turn: jax.Array, total: jax.Array) -> jax.Array:
        places = (turn * count + device) * sequences + jnp.arange(sequences)
        result, _ = ravel_pytree(jax.lax.optimization_barrier(function(tokens[turn], places)))
        parts = jnp.pad(result, (0, padding)).reshape(count, -1)
        for one in jax.lax.all_to_all(parts, AXES, 0, 0):
            total = total + one
        return total

    nothing = jnp.full((like.size + padding) // count, -0.0, like.dtype)  # -0.0 + x is x for all x
    # XLA must not know the number: it would unroll a loop of one step.
    unknown = jax.lax.optimization_barrier(jnp.int32(accumulation))
    total = jax.lax.fori_loop(0, unknown, add, nothing)
    whole = jax.lax.optimization_barrier(jax.lax.all_gather(total, AXES, tiled=True))
    return restore(whole[: like.size] / number)
