"""Committed checkpoints in a bucket, with few requests, and without the libraries that wrote them.

A look is one listing of the names directly below the checkpoints' place, however many objects there
are in them, and a request for each step from the newest down to the first that has its marker:
two in all, while no save is under way. Nothing is remembered from look to look. A step that was
committed can lose its marker again (that is how our trainer sets a damaged one aside), and what is
remembered would have to be asked for again to be sure.
"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.ports import Objects
from supervisor.protocol.committed import MAX_METADATA, METADATA, markers, step_of, was_committed
from supervisor.protocol.reading import UnreadableError


def newest_committed(objects: Objects) -> int | None:
    """The newest committed step among the `objects` of a checkpoints' place.

    Raises:
        OSError: the store cannot say.
    """
    return next((step for step, name in _steps(objects) if _is_committed(objects, name)), None)


def unmarked_copies(objects: Objects) -> tuple[str, ...]:
    """The names of steps, newest first, above the newest committed one that were committed on a
    disk, but have no marker here.

    Raises:
        OSError: the store cannot say.
    """
    found = []
    for _, name in _steps(objects):
        if _is_committed(objects, name):
            break
        try:
            metadata = objects.read(f"{name}/{METADATA}", MAX_METADATA).data
        except (FileNotFoundError, UnreadableError):
            continue
        if was_committed(metadata):
            found.append(name)
    return tuple(found)


def _steps(objects: Objects) -> Iterator[tuple[int, str]]:
    names = objects.list("").folders
    steps = [(step, name) for name in names if (step := step_of(name)) is not None]
    yield from sorted(steps, reverse=True)


def _is_committed(objects: Objects, name: str) -> bool:
    return any(objects.exists(f"{name}/{marker}") for marker in markers(name))
