"""Snapshots of the whole state in memory that outlives this process, between checkpoints.

Taking one must cost the step next to nothing. Its state is used up by the step after it, so it is
copied on the devices first, which is only dispatched here; a thread waits for the copy, sees that
the step was finite, and writes. One that comes while the last is still being written is left out.

Durable checkpoints stay the truth: a snapshot counts only where none is newer, and whatever is
wrong with it, a checkpoint is restored in its place. What is not resumed from is cleared: it is of
a history that is over.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Thread
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from supervisor.protocol.environment import JOB
from supervisor.protocol.snapshots import snapshot_memory
from trainer.checkpoint import Position, Say
from trainer.fingerprint import fingerprint
from trainer.slots import DamagedRecordError, Header, Piece, Slots
from trainer.state import Blueprint, TrainState

_NO_STEP = -1

Index = tuple[slice, ...]


class _UnusableError(Exception):
    """The snapshot is not one to resume from; the text says why."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One array of the state as it lies in memory: each part of it that this process holds, once.

    `plain` describes it without a random key's wrapping; `parts` has the index of each part and,
    among the shards of this process, the number of the one to copy it from."""

    abstract: Any
    plain: jax.ShapeDtypeStruct
    parts: tuple[tuple[Index, int], ...]

    @classmethod
    def of(cls, abstract: Any) -> _Leaf:
        plain = jax.eval_shape(_plain, abstract).update(sharding=abstract.sharding)
        indices = abstract.sharding.addressable_devices_indices_map(plain.shape).values()
        first: dict[tuple[tuple[int, int, int], ...], tuple[Index, int]] = {}
        for number, index in enumerate(indices):
            first.setdefault(_bounds(index, plain.shape), (index, number))
        return cls(abstract, plain, tuple(first.values()))

    def shape(self, index: Index) -> tuple[int, ...]:
        """The shape of the part at `index`."""
        return tuple(len(range(*bounds)) for bounds in _bounds(index, self.plain.shape))

    def size(self, index: Index) -> int:
        """Its bytes."""
        return math.prod(self.shape(index)) * int(self.plain.dtype.itemsize)

    def describe(self) -> str:
        """What tells this layout from another."""
        parts = [_bounds(index, self.plain.shape) for index, _ in self.parts]
        return f"{self.abstract.dtype} {self.plain.shape} {parts}"

    def copied_from(self, array: jax.Array) -> list[jax.Array]:
        """The parts of `array` to copy."""
        plain = _plain(array)
        return [plain.addressable_data(number) for _, number in self.parts]

    def restored_from(self, pieces: Iterator[Piece]) -> jax.Array:
        """The array, from the next pieces."""
        parts = {}
        for index, _ in self.parts:
            part = np.asarray(next(pieces)).view(self.plain.dtype).reshape(self.shape(index))
            parts[_bounds(index, self.plain.shape)] = part
        array: jax.Array = jax.make_array_from_callback(
            self.plain.shape,
            self.plain.sharding,
            lambda index: parts[_bounds(index, self.plain.shape)],
        )
        return jax.random.wrap_key_data(array) if _is_key(self.abstract) else array


class Snapshots:
    """Takes snapshots of a state, every so many steps, and gives the newest back."""

    def __init__(self, memory: int, every: int, blueprint: Blueprint, say: Say) -> None:
        self._every = every
        self._say = say
        self._tree = jax.tree.structure(blueprint.abstract)
        self._leaves = [_Leaf.of(leaf) for leaf in jax.tree.leaves(blueprint.abstract)]
        self._mark = _mark(blueprint, self._leaves)
        sizes = [leaf.size(index) for leaf in self._leaves for index, _ in leaf.parts]
        self._slots = Slots(memory, sizes)
        self._copy = jax.jit(lambda arrays: [jnp.copy(array) for array in arrays])
        self._writing: Thread | None = None
        self._given_up = False

    @classmethod
    def of(cls, blueprint: Blueprint, say: Say) -> Snapshots | None:
        """Those that the config asks for; None: it does not, or nobody keeps memory for them."""
        wanted = blueprint.config.checkpoint.snapshot
        if wanted is None:
            return None
        memory = snapshot_memory()
        if memory is None:
            print("no snapshots are taken: no supervisor has memory for them", flush=True)
            return None
        return cls(memory, wanted.every, blueprint, say)

    def due(self, step: int) -> bool:
        """Whether one is due after `step`."""
        return step % self._every == 0 and not self._given_up

    def take(
        self, state: TrainState, step: int, position: Position, finite: jax.Array | None
    ) -> None:
        """Begin to take one of `state`, which may be donated once this returns.

        `finite` tells, once it is computed, whether the step was; None: it is known to be.
        """
        if self._writing is not None and self._writing.is_alive():
            return
        try:
            copies = self._dispatch_copies(state)
        except jax.errors.JaxRuntimeError as error:
            self._give_up(error)
            return
        arguments = (copies, step, position, finite)
        self._writing = Thread(target=self._write, args=arguments, name="snapshot", daemon=True)
        self._writing.start()

    def restore(self, checkpoint: int | None) -> tuple[int, TrainState, Position] | None:
        """The newest snapshot, if it is not older than the newest `checkpoint`.

        None: there is none to resume from, on some process at least; then all are cleared.
        """
        found = self._restored(checkpoint)
        step = _NO_STEP if found is None else found[0]
        if not _all_have(step):
            if found is not None:
                self._say(f"the snapshot of step {step} is not used: another process has not it")
            found = None
        if found is None:
            self._slots.clear()
        return found

    def settle(self) -> None:
        """Wait until the last one is written."""
        if self._writing is not None:
            self._writing.join()

    # --- taking -----------------------------------------------------------------------------

    def _dispatch_copies(self, state: TrainState) -> list[jax.Array]:
        """A copy of each part on its device: one program for each device that holds some."""
        parts = [
            part
            for leaf, array in zip(self._leaves, jax.tree.leaves(state), strict=True)
            for part in leaf.copied_from(array)
        ]
        by_device: dict[jax.Device, list[int]] = {}
        for number, part in enumerate(parts):
            by_device.setdefault(part.device, []).append(number)
        for numbers in by_device.values():
            copies = self._copy([parts[number] for number in numbers])
            for number, copy in zip(numbers, copies, strict=True):
                parts[number] = copy
        return parts

    def _write(
        self, copies: list[jax.Array], step: int, position: Position, finite: jax.Array | None
    ) -> None:
        try:
            if finite is not None and not bool(finite):
                return
            if self._slots.is_empty:
                self._slots.claim()
            for copy in copies:
                copy.copy_to_host_async()
            about = {"mark": self._mark, "position": position}
            self._slots.write(step, about, [_bytes(copy) for copy in copies])
        except (OSError, ValueError, jax.errors.JaxRuntimeError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._given_up = True
        first = next(iter(str(error).splitlines()), "")[:200]
        self._say(f"no more snapshots are taken: {type(error).__name__}: {first}")
        self._slots.clear()

    # --- resuming ---------------------------------------------------------------------------

    def _restored(self, checkpoint: int | None) -> tuple[int, TrainState, Position] | None:
        header = self._slots.newest()
        if header is None or (checkpoint is not None and header.number < checkpoint):
            return None
        try:
            self._check(header)
            pieces = self._slots.read(header)
            leaves = [leaf.restored_from(pieces) for leaf in self._leaves]
            for _ in pieces:
                raise AssertionError("more pieces than leaves")
        except (_UnusableError, DamagedRecordError) as error:
            self._say(f"the snapshot of step {header.number} in memory is not used: {error}")
            return None
        state = jax.tree.unflatten(self._tree, leaves)
        return header.number, state, header.about["position"]

    def _check(self, header: Header) -> None:
        found = header.about["mark"]
        differ = [key for key, value in self._mark.items() if found.get(key) != value]
        if differ:
            raise _UnusableError(f"it is of another {', '.join(differ)}")


def _mark(blueprint: Blueprint, leaves: list[_Leaf]) -> Mapping[str, Any]:
    """What a snapshot must share with whoever resumes from it."""
    layout = "\n".join(leaf.describe() for leaf in leaves)
    return {
        "job": os.environ.get(JOB, ""),
        "phase": str(blueprint.config.checkpoint.directory),
        "number of devices": blueprint.mesh.size,
        "number of processes": jax.process_count(),
        "process": jax.process_index(),
        **fingerprint(blueprint.config),
        "layout": hashlib.sha256(layout.encode()).hexdigest(),
    }


def _all_have(step: int) -> bool:
    """Whether this and every other process has a snapshot of `step`."""
    if jax.process_count() == 1:
        return step != _NO_STEP
    steps = multihost_utils.process_allgather(np.int32(step))
    return step != _NO_STEP and bool((steps == step).all())


def _is_key(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def _plain(array: Any) -> Any:
    return jax.random.key_data(array) if _is_key(array) else array


def _bounds(index: Index | None, shape: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    assert index is not None  # the sharding names its devices
    return tuple(part.indices(size) for part, size in zip(index, shape, strict=True))


def _bytes(array: jax.Array) -> Piece:
    return np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8).data
