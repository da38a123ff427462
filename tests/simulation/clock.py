"""Virtual time, and the queue of what happens in it."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class VirtualClock:
    """See `ports.Clock`. Monotonic time starts again when the machine boots; the time of day may
    jump."""

    def __init__(self) -> None:
        self.time = 0.0
        self._booted = -1000.0
        self.skew = 0.0

    def now(self) -> float:
        """See `ports.Clock`."""
        return self.time - self._booted

    def wall(self) -> datetime:
        """See `ports.Clock`."""
        return _EPOCH + timedelta(seconds=self.time + self.skew)

    def reach(self, until: float) -> None:
        """Advance the time until `now()` is at least `until`, in spite of rounding."""
        self.time = max(self.time, until + self._booted)
        while self.now() < until:
            self.time = math.nextafter(self.time, math.inf)

    def boot(self) -> None:
        """Start the machine again."""
        self._booted = self.time - 1.0


class Timeline:
    """The queue of callbacks, each with its time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def later(self, delay: float, callback: Callable[[], None]) -> None:
        """Call `callback` in `delay` seconds."""
        heapq.heappush(self._due, (self.clock.time + delay, next(self._order), callback))

    def pass_time(self, until: float) -> bool:
        """Run the next callback that is due by `until`, and return True. If there is none, advance
        the time to `until` and return False."""
        if self._due and self._due[0][0] <= until:
            due, _, callback = heapq.heappop(self._due)
            self.clock.time = max(self.clock.time, due)
            callback()
            return True
        self.clock.time = max(self.clock.time, until)
        return False
