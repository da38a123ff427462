"""Watches a place for newly committed checkpoints while the trainer runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from supervisor.host.folder_changes import FolderChanges
from supervisor.host.notice import Notice, Tell
from supervisor.protocol.checkpoint_layouts import saved_step
from supervisor.protocol.committed import OwnNames, Proof, committed_steps, step_of
from supervisor.protocol.epochs import SavedStep
from supervisor.protocol.location import Uri
from supervisor.protocol.this_machine import is_posix


def newest_committed(
    directory: Path, proven: Proof | None = None, own: OwnNames | None = None
) -> int | None:
    """Returns the number of `newest_saved`."""
    newest = newest_saved(directory, proven, own)
    return None if newest is None else newest.number


def newest_saved(
    directory: Path, proven: Proof | None = None, own: OwnNames | None = None
) -> SavedStep | None:
    """Returns the newest committed step in `directory`; None if there is none.

    `proven` decides about a step that nothing commits; without it, none of them counts. With `own`,
    only its layout counts.
    """
    found = committed_steps(directory, posix=is_posix(directory), proven=proven, own=own)
    return next((saved_step(step, path.name) for step, path in found), None)


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


_Step = TypeVar("_Step")


class CheckpointPoller(Generic[_Step]):
    """Looks at a place again and again: reports each new step, and says when to look next."""

    def __init__(
        self,
        place: Path | Uri,
        find_newest: Callable[[], _Step | None],
        on_commit: Callable[[_Step], None],
        on_error: Tell,
        pace: Pace = DISK,
    ) -> None:
        """Calls `on_commit` with the newest committed step whenever that is another one.

        `find_newest` finds this step in `place`; None: there is none. If it raises an OSError,
        `on_error` gets one notice; once it has worked again, the next OSError leads to another.
        """
        self.has_new_checkpoint = False
        """True once a look has found another newest step than the first look that worked."""
        self.is_stopped = False
        """Set it to True to end: no step is reported from then on."""
        self._place = place
        self._find_newest = find_newest
        self._on_commit = on_commit
        self._on_error = on_error
        self._pace = pace
        self._failed = False
        self._told: _Step | None = None
        self._has_looked = False
        self._changed = False
        self._pause = pace.least

    def poll(self) -> float:
        """Look once. Returns the seconds until the next look, if nobody asks for one sooner."""
        self._changed = False
        try:
            newest = self._find_newest()
        except OSError as error:
            self._report(error)
            return self._pause
        self._failed = False
        self._changed = newest is not None and newest != self._told
        if newest is not None and self._changed and not self.is_stopped:
            self._told = newest
            self.has_new_checkpoint = self._has_looked
            self._on_commit(newest)
        self._has_looked = True
        return self._pause

    def note_pause(self, *, asked: bool) -> None:
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
    """Runs a `CheckpointPoller` in a thread of its own: a storage that hangs must not block the
    supervisor."""

    def __init__(
        self,
        poller: CheckpointPoller[Any],
        folder: Path | None = None,
        own: OwnNames | None = None,
    ) -> None:
        """The callbacks of `poller` run in the watching thread. It also looks when a step appears
        in `folder`, or is closed there. With `own`, only steps of its layout are looked at."""
        self._poller = poller
        self._folder = folder
        parse = step_of if own is None else own.step_of
        self._changes = FolderChanges(lambda name: parse(name) is not None)
        self._thread = threading.Thread(target=self._watch, name="checkpoints", daemon=True)
        self._thread.start()

    @property
    def has_new_checkpoint(self) -> bool:
        """See `CheckpointPoller.has_new_checkpoint`."""
        return self._poller.has_new_checkpoint

    def poll_now(self) -> None:
        """Look at once: the worker reports that it has saved."""
        self._changes.wake()

    def stop(self) -> None:
        """End the watching thread."""
        self._poller.is_stopped = True
        self._changes.wake()

    def _watch(self) -> None:
        while not self._poller.is_stopped:
            if self._folder is not None:
                self._changes.watch(self._folder)
            asked = self._changes.wait(self._poller.poll())
            self._poller.note_pause(asked=asked)
        self._changes.close()
