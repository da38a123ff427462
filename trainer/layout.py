"""How a state lies in a row of bytes: each part of each array that this process holds, once.

What several devices hold copies of is there once, and read back onto each of them. The order is
that of the state's leaves, so it follows from the abstract state alone.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.slots import Piece
from trainer.state import TrainState

Bounds = tuple[tuple[int, int, int], ...]
"""Start, stop and step of a part in each dimension of its array."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a state that is like `abstract`."""

    abstract: TrainState
    leaves: tuple[_Leaf, ...]

    @classmethod
    def of(cls, abstract: TrainState) -> Layout:
        """That of every state with these shapes, types and shardings, in this process."""
        return cls(abstract, tuple(_Leaf.of(leaf) for leaf in jax.tree.leaves(abstract)))

    @property
    def sizes(self) -> list[int]:
        """Bytes of each part."""
        return [leaf.size(part) for leaf in self.leaves for part in leaf.parts]

    @property
    def digest(self) -> str:
        """Tells this layout from others."""
        described = ((str(leaf.wanted.dtype), leaf.plain.shape, leaf.parts) for leaf in self.leaves)
        return hashlib.sha256("\n".join(map(str, described)).encode()).hexdigest()

    def parts(self, state: TrainState) -> list[jax.Array]:
        """The parts of `state`, each where one of this process's devices holds it."""
        arrays = jax.tree.leaves(state)
        pairs = zip(self.leaves, map(_plain, arrays), strict=True)
        return [
            array.addressable_data(number)
            for leaf, array in pairs
            for number in leaf.parts.values()
        ]

    def state(self, pieces: Iterator[Piece]) -> TrainState:
        """The state of which these are the parts, on the devices."""
        leaves = [leaf.array(pieces) for leaf in self.leaves]
        state: TrainState = jax.tree.unflatten(jax.tree.structure(self.abstract), leaves)
        return state


def to_bytes(part: jax.Array) -> Piece:
    """The bytes of a part, once it is computed."""
    return np.ascontiguousarray(np.asarray(part)).reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One array. `plain` describes what lies there for it: a random key without its wrapping.
    `parts` has, for each part, the number of one of this process's shards that hold it."""

    wanted: Any
    plain: Any
    parts: dict[Bounds, int]

    @classmethod
    def of(cls, wanted: Any) -> _Leaf:
        plain = wanted
        if _is_key(wanted):
            plain = jax.eval_shape(_plain, wanted).update(sharding=wanted.sharding)
        indices = plain.sharding.addressable_devices_indices_map(plain.shape).values()
        parts: dict[Bounds, int] = {}
        for number, index in enumerate(indices):
            parts.setdefault(_bounds(index, plain.shape), number)
        return cls(wanted, plain, parts)

    def size(self, part: Bounds) -> int:
        return math.prod(_shape(part)) * int(self.plain.dtype.itemsize)

    def array(self, pieces: Iterator[Piece]) -> jax.Array:
        """It, from the next of `pieces`."""
        parts = {
            part: np.asarray(next(pieces)).view(self.plain.dtype).reshape(_shape(part))
            for part in self.parts
        }
        shape = self.plain.shape
        array: jax.Array = jax.make_array_from_callback(
            shape, self.plain.sharding, lambda index: parts[_bounds(index, shape)]
        )
        return jax.random.wrap_key_data(array) if _is_key(self.wanted) else array


def _bounds(index: Any, shape: tuple[int, ...]) -> Bounds:
    return tuple(part.indices(size) for part, size in zip(index, shape, strict=True))


def _shape(part: Bounds) -> tuple[int, ...]:
    return tuple(len(range(*bounds)) for bounds in part)


def _is_key(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def _plain(array: Any) -> Any:
    return jax.random.key_data(array) if _is_key(array) else array
