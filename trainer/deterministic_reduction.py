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

So the bits do not depend on which device computes what, either. `witnessed_mean` makes use of that:
it computes the same with the devices in another order, and tells what each of them has contributed.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec

from supervisor.config.training.resolved import InitConfig
from trainer.mesh import AXES, batch_sharding
from trainer.weights_fingerprint import lanes_of

_THREADS = "PJRT_NPROC"
"""Variable that sets the number of XLA's CPU threads; XLA starts at least one per device."""


def same_threads(init: InitConfig) -> None:
    """Fix the number of XLA's CPU threads, so that it is the same on every rung; only in bitwise
    mode. Call it before the backend is initialised."""
    if init.is_bitwise and init.loop.micro_batch_size is not None:
        os.environ[_THREADS] = str(init.loop.global_batch_size // init.loop.micro_batch_size)


class Witness(NamedTuple):
    """What the devices have contributed to a mean, as digests in the order of the batch: equal bits
    have equal digests. So they do not depend on which device has computed what."""

    micro_batches: jax.Array
    """[micro-batches, lanes], of the result for each."""
    slices: jax.Array
    """[devices, lanes], of the sum of each slice of the results."""


_FLIPPED = 1 << 10
"""The bit of a float32 that a simulated wrong device flips: it changes the number by 1/8192 at
most."""


def on_each_device(mesh: Mesh, function: Callable[..., Any], *, whole_too: int = 0) -> Any:
    """Return `function` of (state, tokens) under shard_map: each device gets the whole state and
    its own part of the tokens, and so many more arguments as a whole. Its results must be equal on
    all devices, which `mean` ensures."""
    whole, part = PartitionSpec(), batch_sharding(mesh).spec
    specs = (whole, part, *[whole] * whole_too)
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False)


def parts_on_each_device(mesh: Mesh, function: Callable[[Any, jax.Array], Any]) -> Any:
    """Return `function` as `on_each_device` does, but its results are parts: each device has those
    of its own tokens."""
    whole, part = PartitionSpec(), batch_sharding(mesh).spec
    return jax.shard_map(
        function, mesh=mesh, in_specs=(whole, part), out_specs=part, check_vma=False
    )


def sums(numbers: Any) -> Any:
    """Return the sums of whole `numbers` over all devices, which have no order. Call it inside
    `on_each_device`."""
    return jax.lax.psum(numbers, AXES)


def mean(
    function: Callable[[jax.Array, jax.Array], Any],
    tokens: jax.Array,
    zeros: Any,
    wrong: Collection[int] = (),
) -> Any:
    """Return the mean of `function` over the micro-batches of all devices. Call it inside
    `on_each_device`.

    `tokens` [accumulation, sequences, length + 1] are this device's micro-batches. `function` gets
    one of them and the indices [sequences] of its sequences in the global batch, and returns
    float32 arrays with the shapes of `zeros`. Devices at the places `wrong` simulate that they
    compute wrongly.
    """
    return _mean(function, tokens, zeros, wrong, None)[0]


def witnessed_mean(
    function: Callable[[jax.Array, jax.Array], Any],
    tokens: jax.Array,
    zeros: Any,
    shift: jax.Array,
    wrong: Collection[int] = (),
) -> tuple[Any, Witness]:
    """Return what `mean` returns, and its witness. Each device does the work of the device that is
    `shift` places after it: `tokens` are those of that device."""
    return _mean(function, tokens, zeros, wrong, shift)


def _mean(
    function: Callable[[jax.Array, jax.Array], Any],
    tokens: jax.Array,
    zeros: Any,
    wrong: Collection[int],
    shift: jax.Array | None,
) -> tuple[Any, Any]:
    accumulation, sequences, _ = tokens.shape
    device, count = jax.lax.axis_index(AXES), jax.lax.axis_size(AXES)
    worker = device if shift is None else (device + shift) % count
    """The place whose work this device does."""
    num_micro_batches = accumulation * count
    like, restore = ravel_pytree(zeros)
    padding = -like.size % num_micro_batches
    tokens = jnp.concatenate([tokens, tokens[:1]])  # XLA does not index an array of length 1

    def add(step: jax.Array, carry: Any) -> Any:  # step: of the accumulation
        total, digests = carry
        places = (step * count + worker) * sequences + jnp.arange(sequences)
        result, _ = ravel_pytree(jax.lax.optimization_barrier(function(tokens[step], places)))
        if wrong:
            result = _with_flipped_bits(result, jnp.isin(device, jnp.array(sorted(wrong))))
        parts = jnp.pad(result, (0, padding)).reshape(count, -1)
        if shift is not None:
            digests = digests.at[step].set(lanes_of([result]))
            parts = jnp.roll(parts, -shift, axis=0)
        received = jax.lax.all_to_all(parts, AXES, 0, 0)
        for one in received if shift is None else jnp.roll(received, shift, axis=0):
            total = total + one
        return total, digests

    nothing = jnp.full((like.size + padding) // count, -0.0, like.dtype)  # -0.0 + x is x for all x
    no_digests = (
        () if shift is None else jnp.zeros((accumulation, *lanes_of([like]).shape), "uint32")
    )
    # XLA must not know the number of steps: it would unroll a loop of one step.
    unknown = jax.lax.optimization_barrier(jnp.int32(accumulation))
    total, digests = jax.lax.fori_loop(0, unknown, add, (nothing, no_digests))
    gathered = jax.lax.all_gather(total, AXES, tiled=shift is None)
    if shift is None:
        whole, witness = gathered, None
    else:
        whole = jnp.roll(gathered, shift, axis=0).reshape(-1)
        each = (jax.lax.all_gather(one, AXES) for one in (digests, lanes_of([total])))
        micro, slices = (jnp.roll(one, shift, axis=0) for one in each)
        witness = Witness(micro.swapaxes(0, 1).reshape(num_micro_batches, -1), slices)
    whole = jax.lax.optimization_barrier(whole)
    return restore(whole[: like.size] / num_micro_batches), witness


def _with_flipped_bits(numbers: jax.Array, is_wrong: jax.Array) -> jax.Array:
    """Return the float32 `numbers`, each with one bit flipped if `is_wrong`."""
    bits = jax.lax.bitcast_convert_type(numbers, jnp.uint32)
    flipped = jax.lax.bitcast_convert_type(bits ^ jnp.uint32(_FLIPPED), jnp.float32)
    return jnp.where(is_wrong, flipped, numbers)


def each(function: Callable[[jax.Array, jax.Array], jax.Array], tokens: jax.Array) -> jax.Array:
    """Return what `function` does for each micro-batch of this device, [accumulation, ...]. Call it
    inside `parts_on_each_device`; arguments are as for `mean`."""
    accumulation, sequences, _ = tokens.shape
    device, count = jax.lax.axis_index(AXES), jax.lax.axis_size(AXES)
    tokens = jnp.concatenate([tokens, tokens[:1]])
    like = jax.eval_shape(function, tokens[0], jnp.arange(sequences))

    def put(step: jax.Array, results: jax.Array) -> jax.Array:
        places = (step * count + device) * sequences + jnp.arange(sequences)
        result = jax.lax.optimization_barrier(function(tokens[step], places))
        return results.at[step].set(result)

    nothing = jnp.zeros((accumulation + 1, *like.shape), like.dtype)
    unknown = jax.lax.optimization_barrier(jnp.int32(accumulation))
    results: jax.Array = jax.lax.fori_loop(0, unknown, put, nothing)
    return results[:accumulation]
