"""The disk of model_dir in its true state: it may be full, or out of reach, for a while."""

from __future__ import annotations

from collections.abc import Callable
from errno import EIO, ENOSPC

from tests.simulation.chance import RandomStream
from tests.simulation.hazards import Outage

_JUST_FULL = 0.03
"""Probability that the disk is full just when a file or folder is made, if the disk ever fails."""


class Disk:
    """Whether the disk can be read and written now, and how much output was deleted to make
    room."""

    def __init__(
        self, outages: tuple[Outage, ...], stream: RandomStream, now: Callable[[], float]
    ) -> None:
        self._outages = outages
        self._stream = stream
        self._now = now
        self._deleted: dict[Outage, int] = {}
        """How often output was deleted during each outage."""

    @property
    def _outage(self) -> Outage | None:
        """The outage that goes on now; None: the disk is good."""
        now = self._now()
        there = (each for each in self._outages if each.begin <= now < each.end)
        return next((each for each in there if self._deleted.get(each, 0) < each.deletions), None)

    @property
    def is_full(self) -> bool:
        """Whether an outage goes on in which the disk is full."""
        return self._outage is not None and self._outage.is_full

    @property
    def is_away(self) -> bool:
        """Whether the disk cannot even be read."""
        return self._outage is not None and not self._outage.is_full

    @property
    def fails(self) -> bool:
        """Whether an outage goes on: the disk is full, or cannot be reached."""
        return self._outage is not None

    def read(self, path: object) -> None:
        """Read from the disk.

        Raises:
            OSError: it cannot be reached.
        """
        if self.is_away:
            raise OSError(EIO, "Input/output error", str(path))

    @property
    def takes_little(self) -> bool:
        """Whether small things can be written to it."""
        return self._outage is None or self._outage.takes_little

    def write(self, path: object) -> None:
        """Write something small.

        Raises:
            OSError: the disk is full, or cannot be reached.
        """
        self.read(path)
        if not self.takes_little:
            raise OSError(ENOSPC, "No space left on device", str(path))

    def make(self, path: object) -> None:
        """Make a file or folder, for which the disk may just have become too full.

        Raises:
            OSError: the disk is full, or cannot be reached.
        """
        self.write(path)
        if self.will_fail_again and self._stream.happens(_JUST_FULL):
            raise OSError(ENOSPC, "No space left on device", str(path))

    @property
    def will_fail_again(self) -> bool:
        """Whether an outage goes on, or is still to come."""
        return any(self._now() < each.end for each in self._outages)

    def deleted(self) -> None:
        """Note that the output of an attempt was deleted."""
        if (outage := self._outage) is not None:
            self._deleted[outage] = self._deleted.get(outage, 0) + 1


class SimulatedSpace:
    """See `stores.space.Space`: the output of attempts that are over may be deleted."""

    def __init__(self, disk: Disk, over: Callable[[], list[int]], tell: Callable[[str], None]):
        """`over` returns the numbers of the attempts that are over."""
        self._disk = disk
        self._over = over
        self._tell = tell
        self._gone: set[int] = set()
        """The attempts whose output was deleted."""

    @property
    def is_short(self) -> bool:
        """See `Space`."""
        return self._disk.fails

    @property
    def has_old_output(self) -> bool:
        """Whether there is anything left to delete."""
        return not self._disk.is_away and not self._gone.issuperset(self._over())

    def delete_oldest_output(self) -> bool:
        """See `Space`."""
        if not self.has_old_output:
            return False
        oldest = min(set(self._over()) - self._gone)
        self._tell(f"the output of attempt {oldest} is truly deleted")
        self._gone.add(oldest)
        self._disk.deleted()
        return True

    def make_room(self) -> None:
        """See `Space`."""
        while self.delete_oldest_output():
            pass
