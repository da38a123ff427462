"""Watches a place for newly committed checkpoints while the trainer runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol.committed import committed_steps
from supervisor.protocol.location import Uri
from supervisor.protocol.mounts import is_posix


def newest_committed(directory: Path) -> int | None:
    """The newest committed step that is in `directory` now."""
    found = committed_steps(directory, posix=is_posix(directory))
    return next((step for step, _ in found), None)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two looks: `least` after something has changed, then longer, up to `most`."""

    least: float
    most: float

    def after(self, pause: float, *, changed: bool) -> float:
        """The next pause after one of `pause` seconds and another look."""
        return self.least if changed else min(2 * pause, self.most)


DISK = Pace(0.5, 2.0)
BUCKET = Pace(5.0, 30.0)
"""A request costs money. A worker that says it has saved is heard at once anyway."""


class CheckpointWatcher:
    """Looks in a thread of its own: a storage that hangs must not hang the supervisor."""

    def __init__(
        self,
        place: Path | Uri,
        look: Callable[[], int | None],
        on_commit: Callable[[int], None],
        on_error: Callable[[str], None],
        pace: Pace = DISK,
    ) -> None:
        """Call `on_commit`, from the watching thread, with each new newest committed step.

        `look` finds it in `place`, or fails with an OSError: `on_error` is told that once, until it
        works again.
        """
        self.has_news = False
        """Whether another step was the newest than when it first looked."""
        self._place = place
        self._newest = look
        self._on_commit = on_commit
        self._on_error = on_error
        self._failed = False
        self._pace = pace
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
        has_looked = False
        pause = self._pace.least
        while not self._stopped:
            newest = self._look()
            changed = newest is not None and newest != told
            if newest is not None and changed and not self._stopped:
                told = newest
                self.has_news = has_looked
                self._on_commit(newest)
            has_looked = True
            asked = self._look_now.wait(pause)
            self._look_now.clear()
            pause = self._pace.after(pause, changed=changed or asked)

    def _look(self) -> int | None:
        try:
            newest = self._newest()
        except OSError as error:
            if not self._failed:
                where = f" ({error.filename})" if error.filename else ""
                why = f"{error.strerror or error}{where}"
                self._on_error(f"{self._place} cannot be watched: {why}")
            self._failed = True
            return None
        self._failed = False
        return newest
