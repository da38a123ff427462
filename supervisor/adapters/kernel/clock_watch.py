"""Reads the clocks once a second where there is a lease, and stops the workers after a clock jump.

While a machine slept or was frozen, another supervisor may have taken over model_dir. So the
workers are stopped first, then the lease is checked, and only then the workers go on. This runs in
a thread of its own, because at such a moment the main thread and the lease's thread may both wait
for a storage that does not answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from supervisor.core.clock_jump import ClockReading, jump

_PAUSE = 1.0
"""Seconds between two readings of the clocks."""


def read_clocks() -> ClockReading:
    """Reads the clocks of this machine."""
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return ClockReading(time.monotonic(), boot, time.time())


class JumpHandler(Protocol):
    """Callbacks for a clock jump. The watch calls them in its own thread."""

    def stop(self, why: str) -> None:
        """Stop the workers (SIGSTOP) because of `why`."""
        ...

    def is_ours(self, why: str) -> bool:
        """True if model_dir is still ours. If not, this call has had the workers killed."""
        ...

    def go_on(self, seconds: float) -> None:
        """Continue the workers, which were stopped for `seconds`."""
        ...


class ClockWatch:
    """Watches the clocks between `start` and `stop`."""

    def __init__(self, clocks: Callable[[], ClockReading], handler: JumpHandler) -> None:
        self._clocks = clocks
        self._handler = handler
        self._end = threading.Event()
        self._seen = clocks()
        self._thread = threading.Thread(target=self._watch, name="clocks", daemon=True)

    def start(self) -> None:
        """Watch from now on. A jump while the thread is still starting counts too."""
        self._seen = self._clocks()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Later jumps have no effect."""
        self._end.set()

    def _watch(self) -> None:
        while not self._end.wait(_PAUSE):
            before, self._seen = self._seen, self._clocks()
            why = jump(before, self._seen, _PAUSE)
            if why is None:
                continue
            began = time.monotonic()
            self._handler.stop(why)
            if not self._handler.is_ours(why):
                return
            self._handler.go_on(time.monotonic() - began)
            self._seen = self._clocks()
