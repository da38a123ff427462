"""The device health check: do the devices compute correct results?

Each device computes a matrix product in three types, which is compared bit for bit with the true
product. The operands are -1, 0 and 1, and each sum has 256 terms. So every partial sum is an
integer that even bfloat16 holds exactly, and the result has the same bits on every platform, with
any precision and in any order of summation. The devices also add up their integer products
together.
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

from supervisor.protocol.shortening import keep_beginning

_SIZE = 256
_MAX_REASON = 3000

Faults = dict[int, str]
"""What is wrong with a device, by the index of the device."""


def check_devices(
    devices: Sequence[Any],
    one_by_one: bool,
    skip: Collection[int],
    wrong: Collection[int],
    tell: Callable[..., None],
) -> None:
    """Check `devices` and call `tell` with what is known, again before each part of the check.

    With `one_by_one` each device computes alone first. Devices with an index in `skip` are left
    out; those with an index in `wrong` simulate a wrong result.

    Raises:
        ArithmeticError: each device computes correctly, but their sum is wrong.
    """

    def report(at: Any, *, compiled: bool = False) -> None:
        tell(found=len(devices), bad=bad, at=at, compiled=compiled)

    left = [place for place in range(len(devices)) if place not in skip]
    bad: Faults = {}

    for place in left if one_by_one else ():
        report(place)
        try:
            bad |= _faults(devices, [place], wrong, partial(report, place, compiled=True))
        except Exception as error:  # any error of a broken device
            bad[place] = keep_beginning(f"{type(error).__name__}: {error}", _MAX_REASON)
    while healthy := [place for place in left if place not in bad]:
        report("all")
        faults = _faults(devices, healthy, wrong, partial(report, "all", compiled=True))
        if not faults:
            break
        bad |= faults
    report(None)


def _faults(
    devices: Sequence[Any],
    places: Sequence[int],
    wrong: Collection[int],
    compiled: Callable[[], None],
) -> Faults:
    """Have the devices at `places` compute, together if there are several; returns the wrong ones.
    `compiled` is called before any of them is used."""
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
    """Return the operands, the same in every process: indices, mixed by Knuth's multiplicative
    hash."""
    mixed = np.arange(2 * _SIZE * _SIZE, dtype=np.uint32) * np.uint32(2654435761) >> 16
    left, right = (mixed % 3).astype(np.int8).reshape(2, _SIZE, _SIZE) - 1
    return left, right


@jax.jit
def _compute(lefts: jax.Array, right: jax.Array) -> tuple[jax.Array, ...]:
    """Return the products on each device, and the sum of the integer products over all devices."""
    integers = jnp.matmul(lefts, right, preferred_element_type=jnp.int32)
    floats = [jnp.matmul(lefts.astype(kind), right.astype(kind)) for kind in _FLOATS]
    return integers, *floats, jnp.sum(integers, axis=0)


_FLOATS = (jnp.float32, jnp.bfloat16)


def _true_products(left: np.ndarray, right: np.ndarray) -> list[np.ndarray]:
    """Return the products computed on the host with doubles, which hold integers of 53 bits
    exactly."""
    exact = left.astype(np.float64) @ right.astype(np.float64)
    return [exact.astype(kind) for kind in (np.int32, *_FLOATS)]
