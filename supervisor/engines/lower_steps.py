"""Finds what an attempt commits below the newest step of its directory.

As a rule only the newest step matters. But a base model of step 50000 may lie where the program
saves its steps 100, 200 and so on. So a lower step is told too if it is certain that the attempt
made it: it was not there when the attempt began, and it was committed after the newest one. What
follows from it, the core decides (`core.budget`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from supervisor.protocol.checkpoint_layouts import saved_step
from supervisor.protocol.committed import (
    OwnNames,
    Proof,
    committed_at,
    is_committed,
    step_entries,
)
from supervisor.protocol.epochs import SavedStep
from supervisor.protocol.this_machine import is_posix

_MAX_FILES = 1000
"""The most files of a step whose time stamps are read."""
_GRANULARITY = 1.0
"""Seconds by which the time stamp of a file may be too early: file systems round it down."""


class LowerSteps:
    """The steps of one directory that an attempt commits below the newest one. Safe in any
    thread."""

    def __init__(self, directory: Path, own: OwnNames | None, began: float) -> None:
        """The attempt began at the Unix time `began`. With `own`, only steps of its layout are
        looked at."""
        self._directory = directory
        self._own = own
        self._began = began
        self._lock = threading.Lock()
        self._newest: SavedStep | None = None
        self._settled: set[str] | None = None
        """The names that need no look any more; None: the first look is still to come."""

    def look(
        self, newest: SavedStep | None, proven: Proof, tell: Callable[[SavedStep], bool]
    ) -> None:
        """Tell the highest step below `newest` that the attempt has committed since the last look.
        Nothing is told if `newest` is news itself, and is to be told first.

        `tell` returns False if it takes no step any more; then the step is left to `last_look`,
        which waits until `tell` has returned. So each step is told before the end of the attempt
        is, whoever sees it first.

        Raises:
            OSError: the directory cannot be read now.
        """
        with self._lock:
            is_news, self._newest = newest != self._newest, newest
            if newest is None or is_news:
                return
            found, settled = self._latest(newest, proven)
            if found is None or tell(found):
                self._settled = settled

    def last_look(self, newest: SavedStep | None, proven: Proof) -> tuple[SavedStep, ...]:
        """Returns what is left to tell when the attempt is over: `newest`, and a step below it that
        the attempt has committed. If there is none, only a `newest` of an epoch: what else tells
        the core of it has no epoch.

        Raises:
            OSError: the directory cannot be read now.
        """
        with self._lock:
            if newest is None:
                return ()
            lower, self._settled = self._latest(newest, proven)
            if lower is None:
                return (newest,) if newest.epochs else ()
            return newest, lower

    def _latest(self, newest: SavedStep, proven: Proof) -> tuple[SavedStep | None, set[str]]:
        """Returns the highest new step below `newest` that was committed after it, and the names
        that need no look any more once this step is told."""
        entries = step_entries(self._directory, self._own)
        settled = (
            self._old(path for _, path in entries)
            if self._settled is None
            else self._settled.copy()
        )
        posix = is_posix(self._directory)
        found: SavedStep | None = None
        named = [(saved_step(step, path.name), path) for step, path in entries]
        lower = [(step, path) for step, path in named if newest.is_above(step)]
        try:
            above = (path for step, path in named if step == newest)
            since = max(map(commit_time, above), default=0.0)
            for step, path in lower:
                if path.name in settled:
                    continue
                if is_committed(path, posix=posix, proven=proven, own=self._own):
                    settled.add(path.name)
                    if found is None and commit_time(path) > since:
                        found = step
        except (FileNotFoundError, NotADirectoryError):  # the program has just removed one
            pass
        return found, settled

    def _old(self, steps: Iterable[Path]) -> set[str]:
        """Returns the names of those `steps` that were there before the attempt began."""
        found: set[str] = set()
        for path in steps:
            with suppress(FileNotFoundError):  # it has just been removed
                if path.lstat().st_mtime < self._began - _GRANULARITY:
                    found.add(path.name)
        return found


def commit_time(place: Path) -> float:
    """Returns the Unix time at which a step was committed: by its metadata, which a copy keeps, or
    else by its files.

    Raises:
        OSError: it cannot be read now.
    """
    told = committed_at(place)
    return file_time(place) if told is None else told / 1e9


def file_time(place: Path) -> float:
    """Returns the latest time stamp of the files of a step.

    Raises:
        OSError: they cannot be read now.
    """
    times = [place.lstat().st_mtime]
    if place.is_dir():
        with os.scandir(place) as entries:
            times += [
                each.stat(follow_symlinks=False).st_mtime for each in islice(entries, _MAX_FILES)
            ]
    return max(times)
