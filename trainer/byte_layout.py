"""How a state lies in a row of bytes: each part of each array that this process holds, once.

What several devices hold copies of is there once, and read back onto each of them. The order is
that of the state's leaves. A description goes with the bytes, so that they can be read back onto
other devices too: what has other parts there is put together first.
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
"""Start and stop of a part in each dimension of its array."""


@dataclass(frozen=True, slots=True)
class Written:
    """What is known of one array that was written: of which type and shape it is, and which parts
    of it there are, in their order."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Bounds, ...]

    @classmethod
    def of(cls, described: Sequence[Any]) -> Written:
        """From its description in JSON."""
        dtype, shape, parts = described
        bounds = tuple(tuple((start, stop) for start, stop in part) for part in parts)
        return cls(dtype, tuple(shape), bounds)

    @property
    def described(self) -> list[Any]:
        """For JSON."""
        return [self.dtype, self.shape, self.parts]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each part."""
        return [math.prod(_shape(part)) * np.dtype(self.dtype).itemsize for part in self.parts]


@dataclass(frozen=True, slots=True)
class ByteLayout:
    """The layout of a state that is like `abstract`."""

    abstract: TrainState
    leaves: tuple[_Leaf, ...]

    @classmethod
    def of(cls, abstract: TrainState) -> ByteLayout:
        """That of every state with these shapes, types and shardings, in this process."""
        return cls(abstract, tuple(_Leaf.of(leaf) for leaf in jax.tree.leaves(abstract)))

    @property
    def written(self) -> list[Written]:
        """What it writes."""
        return [leaf.written for leaf in self.leaves]

    def parts(self, state: TrainState) -> list[jax.Array]:
        """The parts of `state`, each where one of this process's devices holds it."""
        return [
            array.addressable_data(number)
            for leaf, array in zip(self.leaves, jax.tree.leaves(state), strict=True)
            for number in leaf.parts.values()
        ]

    def can_read(self, written: Sequence[Written]) -> bool:
        """Whether a state of these arrays is one of this layout, and all that this process needs of
        it is there."""
        return len(written) == len(self.leaves) and all(map(_Leaf.is_in, self.leaves, written))

    def state(self, written: Sequence[Written], pieces: Iterator[Piece]) -> TrainState:
        """The state that was written so, from its parts, on the devices."""
        leaves = [leaf.array(one, pieces) for leaf, one in zip(self.leaves, written, strict=True)]
        state: TrainState = jax.tree.unflatten(jax.tree.structure(self.abstract), leaves)
        return state


def sizes(written: Iterable[Written]) -> list[int]:
    """Bytes of each part of all these arrays."""
    return [size for one in written for size in one.sizes]


def to_bytes(part: jax.Array) -> Piece:
    """The bytes of a part, once it is computed."""
    return np.ascontiguousarray(np.asarray(part)).reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One array. `parts` has, for each part, the number of one of this process's shards that hold
    it."""

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
        """It, from the next of `pieces`."""
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
