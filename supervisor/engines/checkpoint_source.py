"""Finds and watches what a trainer writes, in a directory or in a bucket.

This is about checkpoints, and about the object in a bucket that proves success.
"""

from __future__ import annotations

from collections.abc import Callable
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
)
from supervisor.host.aside import aside
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Objects
from supervisor.protocol import committed
from supervisor.protocol.location import Uri
from supervisor.protocol.this_machine import is_posix

_MAX_TOLD = 10
"""Most unusable files that people are told of, for one watch."""
_BOUND = 20.0
"""Most seconds for a request to the bucket. The main loop waits for some requests, but only while
there is no worker that it might have to stop."""


def newest_checkpoint(place: Path | Uri) -> int | None:
    """Returns the newest committed step that is in `place` now; None: there is none.

    For the main loop: it does not block for long on a file system that hangs (`host.aside`).

    Raises:
        OSError: the place cannot be read, or does not answer in time.
    """
    if isinstance(place, Path):
        return aside(str(place)).ask(lambda: newest_committed(place))
    return bucket_checkpoints.newest_committed(_objects(place))


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


def watch(place: Path | Uri, on_commit: Callable[[int], None], on_error: Tell) -> CheckpointWatcher:
    """Watch `place` for new committed steps, in a thread of its own: see `CheckpointWatcher`.

    In a directory it also finds unusable files with the name of a checkpoint's marker or metadata.
    `on_error` gets each of them once, at most ten in all.
    """
    if not isinstance(place, Path):
        objects = _objects(place)
        look: Callable[[], int | None] = partial(bucket_checkpoints.newest_committed, objects)
        return CheckpointWatcher(CheckpointPoller(place, look, on_commit, on_error, BUCKET))
    directory, told = place, set[str]()

    def look_on_disk() -> int | None:
        found = newest_committed(directory)
        for text in islice(committed.unreadable_markers(directory), _MAX_TOLD):
            if text not in told and len(told) < _MAX_TOLD:
                told.add(text)
                on_error(Notice("checkpoint-refused", text, reason=text))
        return found

    return CheckpointWatcher(CheckpointPoller(place, look_on_disk, on_commit, on_error, DISK))


@cache
def _objects(place: Uri) -> Objects:
    return bucket(place, _BOUND)
