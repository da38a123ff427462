"""What an attempt has committed in one directory.

A step is new if its name was not there when the attempt began. Its time stamps must agree, but only
roughly then, because the clock of a file server may be behind or ahead; a copy keeps old ones. Of a
name that was there, or where nobody looked in time, the time stamps alone decide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from supervisor.engines.lower_steps import file_time
from supervisor.protocol.checkpoint_layouts import saved_step
from supervisor.protocol.committed import committed_at
from supervisor.protocol.epochs import SavedStep

_GRANULARITY = 1.0
"""Seconds by which a time stamp of whole seconds may be too early: the file system rounds it
down."""
_TICK = 0.02
"""Seconds by which any other may be too early: the kernel takes the time of its last tick."""
_FUTURE = 60.0
"""Seconds from now after which a time stamp is of a clock that was wrong."""
_SKEW = 600.0
"""Seconds by which the clock of a file server may differ from ours."""


class SavePlace:
    """A directory, the steps that were there, and those that the attempt has committed."""

    def __init__(self, there: Collection[str], began: float) -> None:
        """`there` are the names in it when the attempt began, or as soon after as anybody looked.
        The attempt began at the Unix time `began`."""
        self._there = there
        self._began = began
        self._lowest: SavedStep | None = None
        """The lowest step that was the newest one of the attempt when it was looked at."""
        self._newest: SavedStep | None = None
        """The newest step that the attempt has committed; None: it has committed none."""
        self._before: SavedStep | None = None
        """The highest step that was there before; None: there was none."""
        self.rises = False
        """Whether the newest step of the attempt was seen to rise, or is above one that was there
        before. A base model stays alone; if it is deleted, the steps after it count from the next
        one."""

    def renewed(self) -> SavePlace:
        """Returns the same directory, of which nothing is seen yet."""
        return SavePlace(self._there, self._began)

    def look(self, steps: Iterable[tuple[int, Path]], own: Collection[Path], now: float) -> None:
        """Take in committed `steps`, highest first. The attempt has written `own`, whatever was
        there. `now` is the Unix time.

        Raises:
            OSError: a step cannot be read now.
        """
        new: SavedStep | None = None
        for number, path in steps:
            is_new, step = self._is_new(path, own, now), saved_step(number, path.name)
            if not is_new and (self._before is None or step.is_above(self._before)):
                self._before = step
            if new is not None:  # this one only tells whether anything was there before
                break
            if is_new:
                new = step
        if new is None:
            return
        if self._lowest is None or self._lowest.is_above(new):
            self._lowest = new
        self._newest = new
        self.rises |= new.is_above(self._lowest) or self.is_resumed

    @property
    def newest(self) -> int | None:
        """The newest step that the attempt has committed; None: it has committed none."""
        return None if self._newest is None else self._newest.number

    @property
    def before(self) -> int | None:
        """The highest step that was there before; None: there was none."""
        return None if self._before is None else self._before.number

    @property
    def is_resumed(self) -> bool:
        """Whether the newest step is above one that was there before."""
        newest, before = self._newest, self._before
        return newest is not None and before is not None and newest.is_above(before)

    def began_below(self, last: SavePlace) -> int | None:
        """Returns the lowest step seen here, if nothing was here before the attempt, and the
        newest step in the directory of the `last` one is above it; else None. Of steps that are
        copied in one go, only the newest is seen."""
        lowest, newest = self._lowest, last._before
        if lowest is None or newest is None or self._before is not None:
            return None
        return lowest.number if newest.is_above(lowest) else None

    @property
    def has_steps(self) -> bool:
        """Whether anything is committed there."""
        return self._newest is not None or self._before is not None

    @property
    def above(self) -> int | None:
        """The step that was there before and is higher than all new ones; None: there is none."""
        steps = self.steps
        return steps[0].number if len(steps) > 1 else None

    @property
    def steps(self) -> tuple[SavedStep, ...]:
        """The newest step, behind one that was there before and is higher, if there is one; empty:
        the attempt has committed none."""
        newest, before = self._newest, self._before
        if newest is None:
            return ()
        if before is None or not before.is_above(newest):
            return (newest,)
        return before, newest

    def _is_new(self, path: Path, own: Collection[Path], now: float) -> bool:
        told = committed_at(path)
        at = file_time(path) if told is None else told / 1e9
        is_named_new = told is None and (path.name not in self._there or path in own)
        early, late = (_SKEW, _SKEW) if is_named_new else (rounding(at), _FUTURE)
        return self._began - early <= at <= now + late


def rounding(at: float) -> float:
    """Returns the seconds by which the time stamp `at` may be too early."""
    return _GRANULARITY if at.is_integer() else _TICK
