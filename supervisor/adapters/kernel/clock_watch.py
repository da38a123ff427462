"""Looks at the clocks once a second where there is a lease, and stops the workers when they jumped.

After a machine slept or was frozen, model_dir may be somebody else's. So the workers stand still
first, the lease is asked, and only then they go on. This is a thread of its own: at such a moment
the main thread and that of the lease may both wait for a storage that does not answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from supervisor.core.clock_jump import ClockReading, jump

_PAUSE = 1.0


def read() -> ClockReading:
    """The clocks of this machine."""
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return ClockReading(time.monotonic(), boot, time.time())


class Reaction(Protocol):
    """Callbacks for a clock jump. The watch calls them in its own thread."""

    def stop(self, why: str) -> None:
        """Have the workers stand still."""
        ...

    def is_ours(self, why: str) -> bool:
        """Whether model_dir is still ours. If not, this has ended the workers."""
        ...

    def go_on(self, seconds: float) -> None:
        """Let the workers go on, after they stood still for so long."""
        ...


class ClockWatch:
    """Watches the clocks between `start` and `stop`."""

    def __init__(self, clocks: Callable[[], ClockReading], reaction: Reaction) -> None:
        self._clocks = clocks
        self._reaction = reaction
        self._end = threading.Event()
        self._seen = clocks()
        self._thread = threading.Thread(target=self._watch, name="clocks", daemon=True)

    def start(self) -> None:
        """Watch from now on: a jump that comes while the thread is just starting counts."""
        self._seen = self._clocks()
        self._thread.start()

    def stop(self) -> None:
        """No jump that comes later is acted on."""
        self._end.set()

    def _watch(self) -> None:
        while not self._end.wait(_PAUSE):
            before, self._seen = self._seen, self._clocks()
            why = jump(before, self._seen, _PAUSE)
            if why is None:
                continue
            began = time.monotonic()
            self._reaction.stop(why)
            if not self._reaction.is_ours(why):
                return
            self._reaction.go_on(time.monotonic() - began)
            self._seen = self._clocks()
