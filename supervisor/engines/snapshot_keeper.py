"""Keeps the memory for snapshots from one attempt to the next.

The memory is emptied if the next attempt must not resume from it (`core.snapshot_use` decides), and
replaced if the phase or the number of workers changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.core.snapshot_use import SnapshotUse, refusal
from supervisor.engines.handles import Memory
from supervisor.engines.host_port import Channels
from supervisor.host.notice import Notice, Tell


class SnapshotKeeper:
    """Holds the snapshot memory of each rank, for one phase and one number of workers."""

    def __init__(self, channels: Channels, warn: Tell, tell: Tell) -> None:
        """`warn` tells people of problems, `tell` of normal things."""
        self._channels = channels
        self._warn = warn
        self._tell = tell
        self._size_told = False
        self._phase: int | None = None
        self._world_size = 0
        self._memories: list[Memory] = []
        self._offered = False
        self._declined = False
        self._newest: int | None = None

    def lend(
        self, phase: int, world_size: int, distrust: str, newest: int | None
    ) -> Sequence[Memory]:
        """Returns the memory of each rank for the next attempt, which is of `phase`.

        `distrust` says why that attempt must not resume from snapshots (empty: it may). `newest` is
        the newest committed step. Returns an empty sequence if no memory can be created.
        """
        if self._phase != phase:
            self._begin(phase, world_size)
        elif self._world_size != world_size:
            if not self._is_empty:
                self._drop(
                    f"they are of {self._world_size} workers, and the attempt has {world_size}"
                )
            self._begin(phase, world_size)
        elif not self._is_empty:
            use = SnapshotUse(self._offered, self._declined, _above(newest, self._newest))
            if (why := refusal(distrust, use)) is not None:
                self._drop(why)
        self._offered = not self._is_empty
        self._declined, self._newest = False, newest
        return self._memories

    def give_back(self) -> None:
        """Free the memory: an attempt that runs elsewhere has made the snapshots old."""
        for memory in self._memories:
            memory.close()
        self._phase, self._memories = None, []

    def restored(self, *, snapshot: bool) -> None:
        """Note whether the attempt reported that it resumed from a snapshot."""
        self._declined = not snapshot

    def tell_size(self) -> None:
        """Tell people how much memory the snapshots take, once they take any. This is told once,
        and again after the phase or the number of workers has changed."""
        if self._size_told or self._is_empty:
            return
        self._size_told = True
        size = sum(memory.size for memory in self._memories) / 1e6
        self._tell(
            Notice(
                "snapshots-size",
                f"snapshots in memory: two of them take {size:.1f} MB of this host's memory",
                bytes=int(size * 1e6),
            )
        )

    @property
    def _is_empty(self) -> bool:
        return all(memory.is_empty for memory in self._memories)

    def _drop(self, why: str) -> None:
        self._warn(
            Notice("snapshots-dropped", f"the snapshots in memory are dropped: {why}", reason=why)
        )
        for memory in self._memories:
            memory.empty()

    def _begin(self, phase: int, world_size: int) -> None:
        for memory in self._memories:
            memory.close()
        self._phase, self._world_size, self._memories = phase, world_size, []
        self._size_told = False
        try:
            for _ in range(world_size):
                self._memories.append(self._channels.snapshot_memory())
        except OSError as error:
            for memory in self._memories:
                memory.close()
            self._memories = []
            self._warn(
                Notice(
                    "snapshots-off",
                    f"snapshots in memory are off: cannot create memory for them: {error}",
                    reason=str(error),
                )
            )


def _above(step: int | None, other: int | None) -> bool:
    return step is not None and (other is None or step > other)
