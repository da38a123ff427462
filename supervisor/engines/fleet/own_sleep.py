"""Finds out by the leader's own clock whether the leader did not run for a while.

A leader that is stopped, or whose machine is far too busy, answers nobody, and then the guards of
all hosts kill their workers. When it wakes, no host is to blame for that.

No I/O and no clock: see `fleet`.
"""

from __future__ import annotations

from dataclasses import dataclass

_SHARE = 0.5
"""A gap of more than this share of `lost_after` counts: an agent asks at each quarter of it, and
its answer may come late besides. The leader looks at its clock twenty times in that time."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """A time in which the leader did not run."""

    began: float
    ended: float
    until: float
    """The last time at which workers may die by it."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began

    @property
    def text(self) -> str:
        """What happened, for people."""
        return (
            f"this supervisor did not run for {self.seconds:.1f} s (it was stopped, or its machine "
            "was too busy), so it answered no host"
        )

    def explains(self, at: float) -> bool:
        """Whether a worker that ended at the time `at` may have ended by it."""
        return self.began <= at <= self.until


class OwnClock:
    """When the leader has run, and when it has not."""

    def __init__(self, lost_after: float, at: float) -> None:
        """The leader runs at the time `at`."""
        self._lost_after = lost_after
        self._ran_at = at
        self.last: Sleep | None = None
        """The last time in which it did not run; None: it always has."""

    def runs(self, at: float) -> Sleep | None:
        """Take note that the leader runs; returns the sleep from which it has just woken."""
        before, self._ran_at = self._ran_at, at
        if at - before <= _SHARE * self._lost_after:
            return None
        self.last = Sleep(before, at, at + self._lost_after)
        return self.last

    def explains(self, at: float) -> Sleep | None:
        """Returns the sleep by which a worker may have ended at the time `at`."""
        return self.last if self.last is not None and self.last.explains(at) else None
