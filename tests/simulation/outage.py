"""The disk of model_dir as it truly is: it may be full, or not to be had, for a while."""

from __future__ import annotations

from collections.abc import Callable
from errno import EIO, ENOSPC

from tests.simulation.chance import Dice
from tests.simulation.hazards import Outage

_JUST_FULL = 0.03
"""How often it becomes full between one write and the next, where it ever does."""


class Disk:
    """Whether it can be read and written now, and what could be deleted to make room."""

    def __init__(self, outages: tuple[Outage, ...], dice: Dice, now: Callable[[], float]) -> None:
        self._outages = outages
        self._dice = dice
        self._now = now
        self._deleted: dict[Outage, int] = {}
        """How often room was made in each."""

    @property
    def _outage(self) -> Outage | None:
        """What ails it now."""
        now = self._now()
        there = (each for each in self._outages if each.begin <= now < each.end)
        return next((each for each in there if self._deleted.get(each, 0) < each.deletions), None)

    @property
    def is_full(self) -> bool:
        """Whether nothing can be written to it."""
        return self._outage is not None and self._outage.is_full

    @property
    def is_away(self) -> bool:
        """Whether it cannot even be read."""
        return self._outage is not None and not self._outage.is_full

    @property
    def fails(self) -> bool:
        """Whether it cannot be written, for either reason."""
        return self._outage is not None

    def read(self, path: object) -> None:
        """Somebody reads.

        Raises:
            OSError: it is away.
        """
        if self.is_away:
            raise OSError(EIO, "Input/output error", str(path))

    @property
    def takes_little(self) -> bool:
        """Whether what is small can be written to it."""
        return self._outage is None or self._outage.takes_little

    def write(self, path: object) -> None:
        """Somebody writes a little.

        Raises:
            OSError: it is full, or away.
        """
        self.read(path)
        if not self.takes_little:
            raise OSError(ENOSPC, "No space left on device", str(path))

    def make(self, path: object) -> None:
        """Somebody makes a file or folder, for which it may just have become too full.

        Raises:
            OSError: it is full, or away.
        """
        self.write(path)
        if self.may_fail and self._dice.happens(_JUST_FULL):
            raise OSError(ENOSPC, "No space left on device", str(path))

    @property
    def may_fail(self) -> bool:
        """Whether it is one that fails at times, and will again."""
        return any(self._now() < each.end for each in self._outages)

    def deleted(self) -> None:
        """The output of an attempt was deleted."""
        if (outage := self._outage) is not None:
            self._deleted[outage] = self._deleted.get(outage, 0) + 1


class SimulatedSpace:
    """See `stores.space.Space`: what attempts that are over have printed may be deleted."""

    def __init__(self, disk: Disk, over: Callable[[], list[int]], tell: Callable[[str], None]):
        """`over` gives the numbers of the attempts that are over."""
        self._disk = disk
        self._over = over
        self._tell = tell
        self._gone: set[int] = set()
        """The attempts whose output is deleted."""

    @property
    def is_short(self) -> bool:
        """See `Space`."""
        return self._disk.fails

    @property
    def could_free(self) -> bool:
        """Whether there is anything left to delete."""
        return not self._disk.is_away and not self._gone.issuperset(self._over())

    def free(self) -> bool:
        """See `Space`."""
        if not self.could_free:
            return False
        oldest = min(set(self._over()) - self._gone)
        self._tell(f"the output of attempt {oldest} is truly deleted")
        self._gone.add(oldest)
        self._disk.deleted()
        return True

    def make_room(self) -> None:
        """See `Space`."""
        while self.free():
            pass
