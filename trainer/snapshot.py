"""Snapshots of the whole state between checkpoints, in memory that outlives this process.

A snapshot must cost the step next to nothing. The next step donates the state, so it is first
copied on the devices, which is only dispatched here; a thread waits for the copy, checks that the
step's results are finite, and writes it to the memory. A snapshot that comes due while the last one
is still being written is skipped.

Checkpoints take precedence: a snapshot is used only if no checkpoint is newer, and if anything is
wrong with it, a checkpoint is restored instead. A snapshot that is not resumed from is cleared,
because training then goes on from an earlier state.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

import jax
import jax.numpy as jnp

from supervisor.protocol.environment import JOB, snapshot_memory
from supervisor.protocol.messages import NoticeCode
from trainer.byte_layout import ByteLayout, Written, sizes, to_bytes
from trainer.checkpoint import Position
from trainer.config_fingerprint import fingerprint
from trainer.distributed import all_agree_on
from trainer.log import Warn, log
from trainer.slots import DamagedRecordError, Header, Slots
from trainer.train_state import TrainState, TrainStateSpec


class _UnusableError(Exception):
    """The snapshot cannot be resumed from; the text says why."""


class SnapshotWriter:
    """Takes a snapshot every `every` steps, and restores the newest one."""

    def __init__(self, memory: int, every: int, spec: TrainStateSpec, warn: Warn) -> None:
        self._every = every
        self._warn = warn
        self._layout = ByteLayout.of(spec.abstract)
        self._identity = _identity(spec)
        self._written = self._layout.written
        self._slots = Slots(memory, sizes(self._written))
        self._writing: Thread | None = None
        self._given_up = False

    @classmethod
    def of(cls, spec: TrainStateSpec, warn: Warn) -> SnapshotWriter | None:
        """Return the writer that the config asks for; None: the config asks for none, or no
        supervisor holds memory for them."""
        wanted = spec.config.checkpoint.snapshot
        if wanted is None:
            return None
        memory = snapshot_memory()
        if not all_agree_on(None if memory is None else 0):
            log.info("snapshots-off")
            return None
        assert memory is not None
        return cls(memory, wanted.every, spec, warn)

    def due(self, step: int) -> bool:
        """Whether a snapshot is due after `step`."""
        return step % self._every == 0 and not self._given_up

    def take(
        self,
        state: TrainState,
        step: int,
        position: Position,
        finite: jax.Array | None,
        before_write: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin a snapshot of `state`, which may be donated once this returns. `before_write` is
        called once the step is complete, in another thread, before the snapshot can be used.

        `finite`: boolean array, perhaps not computed yet, whether the step's results are finite;
        None: they are.
        """
        if self._writing is not None and self._writing.is_alive():
            return
        try:
            copies = self._dispatch_copies(state)
        except jax.errors.JaxRuntimeError as error:
            self._give_up(error)
            return
        arguments = (copies, step, position, finite, before_write)
        self._writing = Thread(target=self._write, args=arguments, name="snapshot", daemon=True)
        self._writing.start()

    def restore(self, checkpoint: int | None) -> tuple[int, TrainState, Position] | None:
        """Restore the newest snapshot, if it is not older than step `checkpoint`, the newest
        checkpoint's (None: there is none).

        Returns (step, state, data position). None: at least one process has no usable snapshot;
        then all snapshots are cleared.
        """
        found = self._restored(checkpoint)
        if all_agree_on(None if found is None else found[0]):
            return found
        if found is not None:
            text = f"the snapshot of step {found[0]} is not used: another process does not have it"
            self._warn(text, NoticeCode.SNAPSHOT_NOT_USED, found[0])
        self._slots.clear()
        return None

    def settle(self) -> None:
        """Wait until the last snapshot is written."""
        if self._writing is not None:
            self._writing.join()

    # --- taking -----------------------------------------------------------------------------

    def _dispatch_copies(self, state: TrainState) -> list[jax.Array]:
        """Dispatch a copy of each part on its device, by one program per device."""
        parts = self._layout.parts(state)
        by_device: dict[jax.Device, list[int]] = {}
        for number, part in enumerate(parts):
            by_device.setdefault(part.device, []).append(number)
        for numbers in by_device.values():
            copies = _copy_all([parts[number] for number in numbers])
            for number, copy in zip(numbers, copies, strict=True):
                parts[number] = copy
        return parts

    def _write(
        self,
        copies: list[jax.Array],
        step: int,
        position: Position,
        finite: jax.Array | None,
        before_write: Callable[[], None],
    ) -> None:
        try:
            if finite is not None and not bool(finite):
                return
            before_write()
            if self._slots.is_empty:
                self._slots.claim()
            for copy in copies:
                copy.copy_to_host_async()
            layout = [one.described for one in self._written]
            about = {"mark": self._identity, "position": position, "layout": layout}
            self._slots.write(step, about, [to_bytes(copy) for copy in copies])
        except (OSError, ValueError, jax.errors.JaxRuntimeError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._given_up = True
        first = next(iter(str(error).splitlines()), "")
        text = f"no more snapshots are taken: {type(error).__name__}: {first}"
        self._warn(text, NoticeCode.SNAPSHOTS_STOPPED)
        self._slots.clear()

    # --- resuming ---------------------------------------------------------------------------

    def _restored(self, checkpoint: int | None) -> tuple[int, TrainState, Position] | None:
        header = self._slots.newest()
        if header is None or (checkpoint is not None and header.number < checkpoint):
            return None
        try:
            written = self._checked(header)
            pieces = self._slots.read(header, sizes(written))
            state = self._layout.state(written, pieces)
        except (_UnusableError, DamagedRecordError) as error:
            text = f"the snapshot of step {header.number} in memory is not used: {error}"
            self._warn(text, NoticeCode.SNAPSHOT_NOT_USED, header.number)
            return None
        return header.number, state, header.about["position"]

    def _checked(self, header: Header) -> list[Written]:
        """Return the description of the arrays in the snapshot.

        Raises:
            _UnusableError: it is of another run, or lacks a part that this process needs.
        """
        found = header.about["mark"]
        differ = [key for key, value in self._identity.items() if found.get(key) != value]
        if differ:
            raise _UnusableError(f"it is of another {', '.join(differ)}")
        written = [Written.of(one) for one in header.about.get("layout", ())]
        if not self._layout.can_read(written):
            raise _UnusableError("it holds another state, or not all of it that is needed here")
        return written


@jax.jit
def _copy_all(arrays: list[jax.Array]) -> list[jax.Array]:
    """One program for the process: a standby has rehearsed it."""
    return [jnp.copy(array) for array in arrays]


def _identity(spec: TrainStateSpec) -> Mapping[str, Any]:
    """Return what must be equal to resume from a snapshot. It may be resumed on other devices."""
    return {
        "job": os.environ.get(JOB, ""),
        "phase": str(spec.config.checkpoint.directory),
        "number of processes": jax.process_count(),
        "process": jax.process_index(),
        **fingerprint(spec.config),
    }
