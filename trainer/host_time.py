"""How long a step takes this host before its devices begin: told to the supervisor, which compares.

With several workers, every collective waits for the slowest. So the time of a whole step is the
same on all of them, and only what comes before the first collective shows which host is slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from supervisor.protocol.reporter import Reporter

_INTERVAL = 2.0
"""Least seconds that an average is made of: a single step may be slow anywhere."""


class HostTime:
    """Adds up the host's part of each step, and reports the average now and then."""

    def __init__(self, reporter: Reporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._reporter = reporter
        self._clock = clock
        self._since = self._began = clock()
        self._seconds, self._steps = 0.0, 0

    def begin(self) -> None:
        """A step begins: the host asks for its batch."""
        self._began = self._clock()

    def end(self) -> None:
        """The host is done with its part of the step, and gives the devices theirs."""
        now = self._clock()
        self._seconds += now - self._began
        self._steps += 1
        if now - self._since >= _INTERVAL:
            self._reporter.host_time(self._seconds / self._steps, (now - self._since) / self._steps)
            self.start_over()

    def start_over(self) -> None:
        """Leave out what came before: the time of an evaluation or a save is no step's."""
        self._since = self._clock()
        self._seconds, self._steps = 0.0, 0
