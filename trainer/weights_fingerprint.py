"""A fingerprint of weights: equal if, and as good as only if, every bit is equal.

A checkpoint without the frozen weights has their fingerprint, so that a restart refuses others. The
devices compute it where the weights are, in the time of reading them once: a sum modulo 2^32 has
the same bits in any order, so the result depends neither on the mesh nor on the rung. It finds
mistakes. It is no protection against somebody who wants to deceive.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import hashlib
import json
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

_LANES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)
"""Odd constants (of xxHash): each gives 32 bits of its own."""


def weights_fingerprint(tree: Any) -> str | None:
    """Return the fingerprint of the arrays in `tree`, as 32 hex digits; None: there are none."""
    leaves = jax.tree.leaves_with_path(tree)
    if not leaves:
        return None
    sums = jax.device_get(_sums([leaf for _, leaf in leaves]))
    facts = [
        [jax.tree_util.keystr(path), str(leaf.dtype), list(leaf.shape), [int(x) for x in lanes]]
        for (path, leaf), lanes in zip(leaves, sums, strict=True)
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def lanes_of(arrays: list[jax.Array]) -> jax.Array:
    """Return a digest of `arrays` as an array [lanes], uint32, inside a jitted function."""
    sums = [_mixed(lanes ^ jnp.uint32(index)) for index, lanes in enumerate(_sums(arrays))]
    return jnp.sum(jnp.stack(sums), axis=0, dtype=jnp.uint32)


@jax.jit
def _sums(arrays: list[jax.Array]) -> list[jax.Array]:
    """Return the sums of each array's numbers, mixed with their places: [lanes], uint32."""
    return [jnp.stack([_sum(array, lane) for lane in _LANES]) for array in arrays]


def _sum(array: jax.Array, lane: int) -> jax.Array:
    kind = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(array, kind).astype(jnp.uint32)
    place = jnp.uint32(lane)
    for axis in range(array.ndim):
        stride = jnp.uint32(prod(array.shape[axis + 1 :]) & 0xFFFFFFFF)
        place += jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis) * stride
    mixed = _mixed(bits ^ _mixed(place * jnp.uint32(lane)))
    return jnp.sum(mixed * jnp.uint32(lane), dtype=jnp.uint32)


def _mixed(bits: jax.Array) -> jax.Array:
    """Return the numbers with each bit spread over all (the finalizer of MurmurHash3)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
