"""Watches a place for newly committed checkpoints while the trainer runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.host.notice import Notice, Tell
from supervisor.protocol.committed import committed_steps
from supervisor.protocol.location import Uri
from supervisor.protocol.this_machine import is_posix


def newest_committed(directory: Path) -> int | None:
    """Returns the newest committed step in `directory`; None if there is none."""
    found = committed_steps(directory, posix=is_posix(directory))
    return next((step for step, _ in found), None)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two looks: `least` after a change, then doubled each time, up to `most`."""

    least: float
    most: float

    def after(self, pause: float, *, changed: bool) -> float:
        """Returns the pause after one of `pause` seconds; `changed`: the place has changed."""
        return self.least if changed else min(2 * pause, self.most)


DISK = Pace(0.5, 2.0)
BUCKET = Pace(5.0, 30.0)
"""Slower: each request costs money. When a worker reports a save, we look at once anyway."""


class Looks:
    """Looks at a place again and again: reports each new step, and says when to look next."""

    def __init__(
        self,
        place: Path | Uri,
        look: Callable[[], int | None],
        on_commit: Callable[[int], None],
        on_error: Tell,
        pace: Pace = DISK,
    ) -> None:
        """Calls `on_commit` with the newest committed step whenever that is another one.

        `look` finds this step in `place`; None: there is none. If it raises an OSError, `on_error`
        gets one notice; after `look` has worked again, the next OSError leads to another notice.
        """
        self.has_news = False
        """True once a look has found another newest step than the first look that worked."""
        self.is_over = False
        """Set it to True to end: no step is reported from then on."""
        self._place = place
        self._newest = look
        self._on_commit = on_commit
        self._on_error = on_error
        self._pace = pace
        self._failed = False
        self._told: int | None = None
        self._has_looked = False
        self._changed = False
        self._pause = pace.least

    def look(self) -> float:
        """Look once. Returns the seconds until the next look, if nobody asks for one sooner."""
        self._changed = False
        try:
            newest = self._newest()
        except OSError as error:
            self._report(error)
            return self._pause
        self._failed = False
        self._changed = newest is not None and newest != self._told
        if newest is not None and self._changed and not self.is_over:
            self._told = newest
            self.has_news = self._has_looked
            self._on_commit(newest)
        self._has_looked = True
        return self._pause

    def paused(self, *, asked: bool) -> None:
        """Note that the pause is over; `asked`: it ended early, as somebody asked for a look."""
        self._pause = self._pace.after(self._pause, changed=self._changed or asked)

    def _report(self, error: OSError) -> None:
        """Report the first of several failures in a row."""
        if not self._failed:
            where = f" ({error.filename})" if error.filename else ""
            why = f"{error.strerror or error}{where}"
            self._on_error(
                Notice(
                    "checkpoints-unwatched",
                    f"{self._place} cannot be watched: {why}",
                    place=str(self._place),
                    reason=why,
                )
            )
        self._failed = True


class CheckpointWatcher:
    """Runs `Looks` in a thread of its own: a storage that hangs must not block the supervisor."""

    def __init__(self, looks: Looks) -> None:
        """The callbacks of `looks` run in the watching thread."""
        self._looks = looks
        self._look_now = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="checkpoints", daemon=True)
        self._thread.start()

    @property
    def has_news(self) -> bool:
        """See `Looks.has_news`."""
        return self._looks.has_news

    def look_now(self) -> None:
        """Look at once: the worker reports that it has saved."""
        self._look_now.set()

    def stop(self) -> None:
        """End the watching thread."""
        self._looks.is_over = True
        self._look_now.set()

    def _watch(self) -> None:
        while not self._looks.is_over:
            asked = self._look_now.wait(self._looks.look())
            self._look_now.clear()
            self._looks.paused(asked=asked)
