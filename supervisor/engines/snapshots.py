"""Keeps the memory for snapshots from attempt to attempt, and empties it where `core.snapshots`
says that the next one must not resume from it."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.adapters.snapshots import SnapshotMemory
from supervisor.core.failure import Failure
from supervisor.core.snapshots import Use, refusal


class SnapshotKeeper:
    """The memory of the one worker so far, rank 0. A phase gets a new one."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        """Tell `notice` what a person should know."""
        self._notice = notice
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
                self._notice(f"the snapshots in memory are dropped: {why}")
                self._memory.empty()
        self._offered = self._memory is not None and not self._memory.is_empty
        self._declined, self._newest = False, newest
        return self._memory

    def restored(self, *, snapshot: bool) -> None:
        """The attempt said what it began from."""
        self._declined = not snapshot

    def _begin(self, phase: int) -> None:
        if self._memory is not None:
            self._memory.close()
        self._phase, self._memory = phase, None
        try:
            self._memory = SnapshotMemory()
        except OSError as error:
            self._notice(f"there are no snapshots: no memory can be made for them: {error}")


def _above(step: int | None, other: int | None) -> bool:
    return step is not None and (other is None or step > other)
