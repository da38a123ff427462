"""The layout of a train state as a sequence of bytes: every shard that this process holds, once.

A shard with copies on several devices is written once, and read back onto each of them. The order
is that of the state's leaves. A description is stored with the bytes, so that a state can be read
back with another sharding: an array whose shards differ there is assembled on the host first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainer.slots import Piece
from trainer.train_state import TrainState

Bounds = tuple[tuple[int, int], ...]
"""(start, stop) of a shard in each dimension of its array."""


@dataclass(frozen=True, slots=True)
class Written:
    """One array that was written: its type, its shape and its parts (shards), in order."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Bounds, ...]

    @classmethod
    def of(cls, described: Sequence[Any]) -> Written:
        """Parse what `described` returned."""
        dtype, shape, parts = described
        bounds = tuple(tuple((start, stop) for start, stop in part) for part in parts)
        return cls(dtype, tuple(shape), bounds)

    @property
    def described(self) -> list[Any]:
        """Return it as a list that JSON can hold."""
        return [self.dtype, self.shape, self.parts]

    @property
    def sizes(self) -> list[int]:
        """Return the size of each part in bytes."""
        return [math.prod(_shape(part)) * np.dtype(self.dtype).itemsize for part in self.parts]


@dataclass(frozen=True, slots=True)
class ByteLayout:
    """The layout of every state with the shapes, types and shardings of one abstract state."""

    abstract: TrainState
    leaves: tuple[_Leaf, ...]

    @classmethod
    def of(cls, abstract: TrainState) -> ByteLayout:
        """Return the layout in this process of states with the shapes, types and shardings of
        `abstract`."""
        return cls(abstract, tuple(_Leaf.of(leaf) for leaf in jax.tree.leaves(abstract)))

    @property
    def written(self) -> list[Written]:
        """Describe the arrays that this layout writes."""
        return [leaf.written for leaf in self.leaves]

    def parts(self, state: TrainState) -> list[jax.Array]:
        """Return the parts of `state` as single-device arrays, on devices of this process."""
        return [
            array.addressable_data(number)
            for leaf, array in zip(self.leaves, jax.tree.leaves(state), strict=True)
            for number in leaf.parts.values()
        ]

    def can_read(self, written: Sequence[Written]) -> bool:
        """Whether the arrays `written` fit this layout, and include all that this process needs."""
        return len(written) == len(self.leaves) and all(map(_Leaf.is_in, self.leaves, written))

    def state(self, written: Sequence[Written], pieces: Iterator[Piece]) -> TrainState:
        """Put the state that was written as `written` back on the devices, from its `pieces`."""
        leaves = [leaf.array(one, pieces) for leaf, one in zip(self.leaves, written, strict=True)]
        state: TrainState = jax.tree.unflatten(jax.tree.structure(self.abstract), leaves)
        return state


def sizes(written: Iterable[Written]) -> list[int]:
    """Return the size in bytes of each part of all these arrays, in order."""
    return [size for one in written for size in one.sizes]


def to_bytes(part: jax.Array) -> Piece:
    """Return the bytes of a part; waits until it is computed."""
    return np.ascontiguousarray(np.asarray(part)).reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One array. `parts` maps each part to the index of one addressable shard that holds it."""

    wanted: jax.ShapeDtypeStruct
    parts: dict[Bounds, int]

    @classmethod
    def of(cls, wanted: Any) -> _Leaf:
        indices = wanted.sharding.addressable_devices_indices_map(wanted.shape).values()
        parts: dict[Bounds, int] = {}
        for number, index in enumerate(indices):
            parts.setdefault(_bounds(index, wanted.shape), number)
        return cls(wanted, parts)

    @property
    def written(self) -> Written:
        return Written(str(self.wanted.dtype), self.wanted.shape, tuple(self.parts))

    def is_in(self, written: Written) -> bool:
        own = self.written
        if (written.dtype, written.shape) != (own.dtype, own.shape):
            return False
        is_whole = sum(written.sizes) == self.wanted.size * self.wanted.dtype.itemsize
        return is_whole or set(own.parts) <= set(written.parts)

    def array(self, written: Written, pieces: Iterator[Piece]) -> jax.Array:
        """Build the array from the next `pieces`."""
        shape, dtype = self.wanted.shape, self.wanted.dtype
        parts = {
            part: np.asarray(next(pieces)).view(dtype).reshape(_shape(part))
            for part in written.parts
        }
        if not set(self.parts) <= set(parts):
            whole = np.empty(shape, dtype)
            for part, content in parts.items():
                whole[_slices(part)] = content
            parts = {part: whole[_slices(part)] for part in self.parts}
        array: jax.Array = jax.make_array_from_callback(
            shape, self.wanted.sharding, lambda index: parts[_bounds(index, shape)]
        )
        return array


def _bounds(index: Any, shape: tuple[int, ...]) -> Bounds:
    pairs = zip(index, shape, strict=True)
    return tuple(part.indices(size)[:2] for part, size in pairs)


def _slices(part: Bounds) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in part)


def _shape(part: Bounds) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in part)
