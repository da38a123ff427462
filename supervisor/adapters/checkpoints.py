"""Watches a directory for newly committed checkpoints while the trainer runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from supervisor.protocol.committed import committed_steps


def newest_committed(directory: Path) -> int | None:
    """The newest committed step that is in `directory` now."""
    return next((step for step, _ in committed_steps(directory)), None)


class CheckpointWatcher:
    """Looks in a thread of its own: a storage that hangs must not hang the supervisor."""

    def __init__(
        self,
        directory: Path,
        on_commit: Callable[[int], None],
        on_error: Callable[[str], None],
        *,
        interval: float = 0.5,
    ) -> None:
        """Call `on_commit`, from the watching thread, with each new newest committed step."""
        self._directory = directory
        self._on_commit = on_commit
        self._on_error = on_error
        self._failed = False
        self._interval = interval
        self._look_now = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name="checkpoints", daemon=True)
        self._thread.start()

    def look_now(self) -> None:
        """The worker says that it has saved."""
        self._look_now.set()

    def stop(self) -> None:
        """End the watching thread."""
        self._stopped = True
        self._look_now.set()

    def _watch(self) -> None:
        told: int | None = None
        while not self._stopped:
            newest = self._look()
            if newest is not None and newest != told and not self._stopped:
                told = newest
                self._on_commit(newest)
            self._look_now.wait(self._interval)
            self._look_now.clear()

    def _look(self) -> int | None:
        try:
            newest = newest_committed(self._directory)
        except OSError as error:
            if not self._failed:
                self._on_error(f"{self._directory} cannot be watched: {error.strerror}")
            self._failed = True
            return None
        self._failed = False
        return newest
