"""Keeps the memory for snapshots from attempt to attempt, and empties it where `core.snapshot_use`
says that the next one must not resume from it."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.core.snapshot_use import SnapshotUse, refusal
from supervisor.engines.handles import Memory
from supervisor.engines.host_port import Channels
from supervisor.host.notice import Notice, Tell


class SnapshotKeeper:
    """The memory of each rank. A phase gets new ones, and so does a group of another size."""

    def __init__(self, channels: Channels, warn: Tell, tell: Tell) -> None:
        """`warn` a person of what is not as it should be, `tell` what is."""
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
        """The memory of each rank for an attempt of `phase`; `newest` is the newest committed step.
        `distrust` says why it must not resume from them, if so. Empty if none can be had."""
        if self._phase != phase:
            self._begin(phase, world_size)
        elif self._world_size != world_size:
            if not self._is_empty:
                self._drop(f"they are of {self._world_size} workers, not {world_size}")
            self._begin(phase, world_size)
        elif not self._is_empty:
            use = SnapshotUse(self._offered, self._declined, _above(newest, self._newest))
            if (why := refusal(distrust, use)) is not None:
                self._drop(why)
        self._offered = not self._is_empty
        self._declined, self._newest = False, newest
        return self._memories

    def restored(self, *, snapshot: bool) -> None:
        """The attempt said what it began from."""
        self._declined = not snapshot

    def look(self) -> None:
        """See how much memory the snapshots of the phase take, and tell it once."""
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
                    f"there are no snapshots: no memory can be made for them: {error}",
                    reason=str(error),
                )
            )


def _above(step: int | None, other: int | None) -> bool:
    return step is not None and (other is None or step > other)
