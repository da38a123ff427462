"""The health check of devices: whether they compute what they should.

What is computed is a matrix product in three types, compared bit for bit with what it must be. The
operands are -1, 0 and 1, 256 to a sum: every partial sum is an integer that bfloat16 still holds
exactly, so no platform, precision or order may differ in a bit. Together the devices also add up
their integers.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from supervisor.protocol.shortening import beginning

_SIZE = 256
_MAX_REASON = 3000

Faults = dict[int, str]
"""What is wrong with devices, by their place."""


def probe(
    devices: Sequence[Any],
    one_by_one: bool,
    skip: Collection[int],
    wrong: Collection[int],
    tell: Callable[..., None],
) -> None:
    """Try `devices`; `tell` is called with what is known.

    Raises:
        ArithmeticError: each computes as it should, but not all of them together.
    """

    def tell_of(at: Any, *, compiled: bool = False) -> None:
        tell(found=len(devices), bad=bad, at=at, compiled=compiled)

    left = [place for place in range(len(devices)) if place not in skip]
    bad: Faults = {}

    for place in left if one_by_one else ():
        tell_of(place)
        try:
            bad |= _faults(devices, [place], wrong, partial(tell_of, place, compiled=True))
        except Exception as error:  # whatever a broken device makes of it
            bad[place] = beginning(f"{type(error).__name__}: {error}", _MAX_REASON)
    while healthy := [place for place in left if place not in bad]:
        tell_of("all")
        faults = _faults(devices, healthy, wrong, partial(tell_of, "all", compiled=True))
        if not faults:
            break
        bad |= faults
    tell_of(None)


def _faults(
    devices: Sequence[Any],
    places: Sequence[int],
    wrong: Collection[int],
    compiled: Callable[[], None],
) -> Faults:
    """Have the devices at `places` compute, together where they are several; `compiled` is called
    before any of them is used."""
    left, right = _operands()
    true = _true_products(left, right)
    lefts = np.stack([left] * len(places))
    for index, place in enumerate(places):
        lefts[index, 0, 0] += place in wrong
    mesh = Mesh(np.array([devices[place] for place in places]), ("all",))
    apart, same = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("all",), ()))
    program = _compute.lower(_like(lefts, apart), _like(right, same)).compile()
    compiled()
    *products, total = program(jax.device_put(lefts, apart), jax.device_put(right, same))
    faults: Faults = {}
    for product, expected in zip(products, true, strict=True):
        for shard in product.addressable_shards:
            place = places[shard.index[0].start or 0]
            if place not in faults and np.asarray(shard.data).tobytes() != expected.tobytes():
                simulated = "simulated: " if place in wrong else ""
                faults[place] = f"{simulated}a wrong result of a matrix product ({product.dtype})"
    true_total = true[0] * len(places)
    for shard in total.addressable_shards if not faults else ():
        if np.asarray(shard.data).tobytes() != true_total[shard.index].tobytes():
            raise ArithmeticError(f"the sum over all devices is wrong on {shard.device}")
    return faults


def _like(value: np.ndarray, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)


def _operands() -> tuple[np.ndarray, np.ndarray]:
    """The same in every process: places, mixed by Knuth's multiplicative hash."""
    mixed = np.arange(2 * _SIZE * _SIZE, dtype=np.uint32) * np.uint32(2654435761) >> 16
    left, right = (mixed % 3).astype(np.int8).reshape(2, _SIZE, _SIZE) - 1
    return left, right


@jax.jit
def _compute(lefts: jax.Array, right: jax.Array) -> tuple[jax.Array, ...]:
    """The products of each device, and the sum of the first ones over all devices."""
    integers = jnp.matmul(lefts, right, preferred_element_type=jnp.int32)
    floats = [jnp.matmul(lefts.astype(kind), right.astype(kind)) for kind in _FLOATS]
    return integers, *floats, jnp.sum(integers, axis=0)


_FLOATS = (jnp.float32, jnp.bfloat16)


def _true_products(left: np.ndarray, right: np.ndarray) -> list[np.ndarray]:
    """By doubles on the host, which hold integers of 53 bits."""
    exact = left.astype(np.float64) @ right.astype(np.float64)
    return [exact.astype(kind) for kind in (np.int32, *_FLOATS)]
