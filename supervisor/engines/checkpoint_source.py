"""What a trainer leaves, wherever it is: in a directory, or in a bucket."""

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
    CheckpointWatcher,
    Looks,
    newest_committed,
)
from supervisor.host.aside import aside
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Objects
from supervisor.protocol import committed
from supervisor.protocol.location import Uri
from supervisor.protocol.this_machine import is_posix

_MAX_TOLD = 10
_BOUND = 20.0
"""Seconds for a request to the bucket: the decision loop waits for some of them, though only while
there is no worker that it could have to stop."""


def newest(place: Path | Uri) -> int | None:
    """The newest committed step that is in `place` now. For the decision loop: a directory whose
    file system hangs is not waited for.

    Raises:
        OSError: nobody can look, or there is no answer in time.
    """
    if isinstance(place, Path):
        return aside(str(place)).ask(lambda: newest_committed(place))
    return bucket_checkpoints.newest_committed(_objects(place))


def unmarked_copies(place: Path | Uri) -> tuple[str, ...]:
    """The names of newer steps that were copied to a bucket, or a mount of one, from a disk,
    without their markers; newest first.

    Raises:
        OSError: nobody can look.
    """
    if isinstance(place, Path):
        return () if is_posix(place) else tuple(committed.unmarked_copies(place))
    return bucket_checkpoints.unmarked_copies(_objects(place))


def exists(file: Uri) -> bool:
    """Whether there is that object.

    Raises:
        OSError: nobody can look.
    """
    return _objects(Uri(file.scheme, file.bucket)).exists(file.path)


def watch(place: Path | Uri, on_commit: Callable[[int], None], on_error: Tell) -> CheckpointWatcher:
    """Watch `place`; see `CheckpointWatcher`, in whose thread a directory may hang. `on_error` is
    also told, once, of what looks like a checkpoint and is none that can be used."""
    if not isinstance(place, Path):
        objects = _objects(place)
        look: Callable[[], int | None] = partial(bucket_checkpoints.newest_committed, objects)
        return CheckpointWatcher(Looks(place, look, on_commit, on_error, BUCKET))
    directory, told = place, set[str]()

    def look_on_disk() -> int | None:
        found = newest_committed(directory)
        for text in islice(committed.refused(directory), _MAX_TOLD):
            if text not in told and len(told) < _MAX_TOLD:
                told.add(text)
                on_error(Notice("checkpoint-refused", text, reason=text))
        return found

    return CheckpointWatcher(Looks(place, look_on_disk, on_commit, on_error, DISK))


@cache
def _objects(place: Uri) -> Objects:
    return bucket(place, _BOUND)
