"""Keeps the memory for snapshots from attempt to attempt, and empties it where `core.snapshots`
says that the next one must not resume from it."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.adapters.snapshots import SnapshotMemory
from supervisor.core.failure import Failure
from supervisor.core.snapshots import Use, refusal


class SnapshotKeeper:
    """The memory of the one worker so far, rank 0. A phase gets a new one."""

    def __init__(self, warn: Callable[[str], None], tell: Callable[[str], None]) -> None:
        """`warn` a person of what is not as it should be, `tell` what is."""
        self._warn = warn
        self._tell = tell
        self._size_told = False
        self._phase: int | None = None
        self._memory: SnapshotMemory | None = None
        self._offered = False
        self._declined = False
        self._newest: int | None = None

    def lend(
        self, phase: int, failure: Failure | None, newest: int | None
    ) -> SnapshotMemory | None:
        """The memory for an attempt of `phase` that follows on `failure`; `newest` is the newest
        committed step. None: there is none to be had."""
        if self._phase != phase:
            self._begin(phase)
        elif self._memory is not None and not self._memory.is_empty:
            use = Use(self._offered, self._declined, _above(newest, self._newest))
            if (why := refusal(failure, use)) is not None:
                self._warn(f"the snapshots in memory are dropped: {why}")
                self._memory.empty()
        self._offered = self._memory is not None and not self._memory.is_empty
        self._declined, self._newest = False, newest
        return self._memory

    def restored(self, *, snapshot: bool) -> None:
        """The attempt said what it began from."""
        self._declined = not snapshot

    def look(self) -> None:
        """See how much memory the snapshots of the phase take, and tell it once."""
        if self._size_told or self._memory is None or self._memory.is_empty:
            return
        self._size_told = True
        size = self._memory.size / 1e6
        self._tell(f"snapshots in memory: two of them take {size:.1f} MB of this host's memory")

    def _begin(self, phase: int) -> None:
        if self._memory is not None:
            self._memory.close()
        self._phase, self._memory, self._size_told = phase, None, False
        try:
            self._memory = SnapshotMemory()
        except OSError as error:
            self._warn(f"there are no snapshots: no memory can be made for them: {error}")


def _above(step: int | None, other: int | None) -> bool:
    return step is not None and (other is None or step > other)
