"""Finds and watches what a trainer writes, in a directory or in a bucket.

This is about checkpoints, and about the object in a bucket that proves success.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path

from supervisor.adapters.stores import bucket_checkpoints
from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.stores.checkpoint_watcher import (
    BUCKET,
    DISK,
    CheckpointPoller,
    CheckpointWatcher,
    newest_committed,
    newest_saved,
)
from supervisor.engines.closed_steps import ClosedSteps, Workers
from supervisor.engines.lower_steps import LowerSteps, commit_time
from supervisor.host.aside import aside
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Objects
from supervisor.protocol import committed
from supervisor.protocol.committed import OwnNames, is_committed, step_entries
from supervisor.protocol.epochs import SavedStep
from supervisor.protocol.location import Uri
from supervisor.protocol.this_machine import is_posix

_MAX_TOLD = 10
"""Most unusable files that people are told of, for one directory."""
_BOUND = 20.0
"""Most seconds for a request to the bucket. The main loop waits for some requests, but only while
there is no worker that it might have to stop."""


def newest_checkpoint(
    place: Path | Uri, own: OwnNames | None = None, *, closed: bool = False
) -> int | None:
    """Returns the newest committed step that is in `place` now; None: there is none.

    Called while no worker lives; for `own` and `closed` see `host_port.HostFiles`.

    For the main loop: it does not block for long on a file system that hangs (`host.aside`).

    Raises:
        OSError: the place cannot be read, or does not answer in time.
    """
    if isinstance(place, Path):
        proven = partial(_closed_steps(place, own).proves_later, closed=closed)
        return aside(str(place)).ask(lambda: newest_committed(place, proven, own))
    return bucket_checkpoints.newest_committed(_objects(place), own)


def unproven_step(place: Path | Uri, own: OwnNames | None, committed: int | None) -> int | None:
    """Returns the newest step above the newest `committed` one that is complete and of the last
    attempt, but was not seen closed; None: there is none. Called while no worker lives.

    Raises:
        OSError: the place cannot be read, or does not answer in time.
    """
    if not isinstance(place, Path):
        return None
    whole = _closed_steps(place, own).is_whole

    def look() -> int | None:
        for step, path in step_entries(place, own):
            if step == committed:
                break
            if is_committed(path, posix=is_posix(place), proven=whole, own=own):
                return step
        return None

    return aside(str(place)).ask(look)


def torn_step(
    place: Path | Uri, own: OwnNames | None, committed: int | None, *, new: bool
) -> Path | None:
    """Returns the newest step, if it is above the newest `committed` one and is not complete; else
    None. With `new`, only if the last attempt wrote it. Called while no worker lives.

    Raises:
        OSError: the place cannot be read, or does not answer in time.
    """
    if not isinstance(place, Path):
        return None

    def look() -> Path | None:
        step, path = next(iter(step_entries(place, own)), (None, place))
        is_above = step is not None and step != committed
        is_torn = is_above and _closed_steps(place, own).is_torn(path, new=new)
        return path if is_torn else None

    return aside(str(place)).ask(look)


def seconds_since_commit(place: Path | Uri, own: OwnNames | None, step: int) -> float | None:
    """Returns how many seconds ago `step` was committed, by its metadata or its files; None: it is
    not there, or in a bucket.

    For the main loop, like `newest_checkpoint`.

    Raises:
        OSError: the place cannot be read, or does not answer in time.
    """
    if not isinstance(place, Path):
        return None

    def look() -> float | None:
        found = (path for each, path in step_entries(place, own) if each == step)
        try:
            at = max(map(commit_time, found), default=None)
        except (FileNotFoundError, NotADirectoryError):  # it has just been removed
            return None
        return None if at is None else time.time() - at

    return aside(str(place)).ask(look)


def steps_in(
    directory: Path, workers: Workers, own: OwnNames | None, closed: bool | None
) -> Iterator[tuple[int, Path]]:
    """Yields the committed steps that are in `directory` now, with their paths, newest first. It
    may block.

    `closed` is None while the `workers` live; else as in `newest_checkpoint`.

    Raises:
        OSError: the directory cannot be read.
    """
    steps = _closed_steps(directory, own)
    if closed is None:
        proven = partial(steps.proves_now, workers=workers)
    else:
        proven = partial(steps.proves_later, closed=closed)
    return committed.committed_steps(directory, posix=is_posix(directory), proven=proven, own=own)


def unmarked_copies(place: Path | Uri) -> tuple[str, ...]:
    """Returns the names of steps above the newest committed one that were copied from a disk to a
    bucket, or to a mounted bucket, without their markers; newest first.

    Raises:
        OSError: the place cannot be read.
    """
    if isinstance(place, Path):
        return () if is_posix(place) else tuple(committed.unmarked_copies(place))
    return bucket_checkpoints.unmarked_copies(_objects(place))


def object_exists(file: Uri) -> bool:
    """True if the object `file` exists.

    Raises:
        OSError: the bucket cannot be read.
    """
    return _objects(Uri(file.scheme, file.bucket)).exists(file.path)


class PlaceWatcher(CheckpointWatcher):
    """Watches a place for new steps, and looks a last time when the attempt is over."""

    def __init__(
        self,
        poller: CheckpointPoller[SavedStep],
        last_look: Callable[[bool], tuple[SavedStep, ...]],
        folder: Path | None = None,
        own: OwnNames | None = None,
    ) -> None:
        """`last_look` gets `closed`, and returns what `last_lower` does."""
        super().__init__(poller, folder, own)
        self._last_look = last_look

    def last_lower(self, *, closed: bool) -> tuple[SavedStep, ...]:
        """See `handles.Watch`."""
        return self._last_look(closed)


def watch(
    place: Path | Uri,
    workers: Workers,
    on_commit: Callable[[SavedStep], None],
    on_lower: Callable[[SavedStep], None],
    on_error: Tell,
    own: OwnNames | None = None,
    *,
    goes_on: bool = False,
) -> PlaceWatcher:
    """Watch `place` for new committed steps, in a thread of its own: see `CheckpointWatcher`.

    A step that nothing commits counts once it was seen closed while the `workers` live: see
    `closed_steps`. With `own`, only its layout counts. `goes_on`: the attempt has been watched
    already, so that a step that is there may be its own.

    In a directory it also finds new steps below the newest one, for `on_lower` (see `lower_steps`),
    and unusable files with the name of a checkpoint's marker or metadata. `on_error` gets each of
    them once, at most ten in all, whatever number of attempts looks there.
    """
    if not isinstance(place, Path):
        objects = _objects(place)
        look = partial(bucket_checkpoints.newest_saved, objects, own)
        poller = CheckpointPoller(place, look, on_commit, on_error, BUCKET)
        return PlaceWatcher(poller, lambda closed: ())
    directory, told = place, _TOLD.setdefault(place, set())
    steps, lower = _closed_steps(place, own), LowerSteps(place, own, time.time())
    has_begun = goes_on
    proven = partial(steps.proves_now, workers=workers)

    def tell_lower(step: SavedStep) -> bool:
        if poller.is_stopped:
            return False
        on_lower(step)
        return True

    def look_on_disk() -> SavedStep | None:
        nonlocal has_begun
        if not has_begun:
            steps.begin(directory)
            has_begun = True
        found = newest_saved(directory, proven, own)
        lower.look(found, proven, tell_lower)
        for text in islice(committed.unreadable_markers(directory), _MAX_TOLD):
            if text not in told and len(told) < _MAX_TOLD:
                told.add(text)
                on_error(Notice("checkpoint-refused", text, reason=text))
        return found

    def look_at_the_end(closed: bool) -> tuple[SavedStep, ...]:
        later = partial(steps.proves_later, closed=closed)
        found = newest_saved(directory, later, own)
        return lower.last_look(found, later)

    poller = CheckpointPoller(place, look_on_disk, on_commit, on_error, DISK)
    return PlaceWatcher(
        poller,
        lambda closed: aside(str(place)).ask(lambda: look_at_the_end(closed)),
        directory,
        own,
    )


_CLOSED: dict[tuple[Path, OwnNames | None], ClosedSteps] = {}
"""What is known of the steps of each directory, for all attempts."""


_TOLD: dict[Path, set[str]] = {}
"""What was told of unusable files in each directory, for all attempts."""


def _closed_steps(place: Path, own: OwnNames | None) -> ClosedSteps:
    layout = own if own is not None and own.is_described else None
    return _CLOSED.setdefault((place, layout), ClosedSteps(layout))


@cache
def _objects(place: Uri) -> Objects:
    return bucket(place, _BOUND)
