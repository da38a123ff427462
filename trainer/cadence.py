"""When a checkpoint is due."""

from __future__ import annotations

import time

from trainer.schema import CheckpointConfig


class Cadence:
    """Every so many steps, or at the first step boundary after so much time since the last one."""

    def __init__(self, config: CheckpointConfig) -> None:
        """Time runs from now on."""
        self._every = config.every
        self._seconds = config.every_seconds
        self._last = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether one is due after `step`. Time runs anew from a yes."""
        if isinstance(self._every, int):
            return step % self._every == 0
        now = time.monotonic()
        if self._seconds is None or now - self._last < self._seconds:
            return False
        self._last = now
        return True
