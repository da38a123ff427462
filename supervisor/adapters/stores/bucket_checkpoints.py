"""Finds committed checkpoints in a bucket with few requests, without the libraries that wrote them.

A look makes one listing of the names directly below the checkpoints' place, however many objects
the steps contain. Then it asks for the marker of each step, from the newest down to the first one
that has it. While no save is under way these are two requests. Nothing is cached between two looks:
a committed step can lose its marker again (our trainer sets a damaged step aside in this way), so a
cached answer would have to be checked by the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from supervisor.ports import Objects
from supervisor.protocol.checkpoint_layouts import markers_of, newest_first, saved_step
from supervisor.protocol.committed import (
    MAX_METADATA,
    METADATA,
    OwnNames,
    step_of,
    was_committed,
)
from supervisor.protocol.epochs import SavedStep
from supervisor.protocol.reading import UnreadableError


def newest_committed(objects: Objects, own: OwnNames | None = None) -> int | None:
    """Returns the number of `newest_saved`."""
    newest = newest_saved(objects, own)
    return None if newest is None else newest.number


def newest_saved(objects: Objects, own: OwnNames | None = None) -> SavedStep | None:
    """Returns the newest committed step among the `objects` of a checkpoints' place; None: there
    is none. With `own`, only its layout counts.

    Raises:
        OSError: the store does not answer.
    """
    for step, name in _steps(objects, step_of if own is None else own.step_of):
        is_marked = own is not None and objects.exists(f"{name}/{own.marker}")
        if is_marked or (own is None and _is_committed(objects, name)):
            return saved_step(step, name)
    return None


def unmarked_copies(objects: Objects) -> tuple[str, ...]:
    """Returns the names of steps, newest first, that were committed on a disk and copied here: they
    have no marker, and are newer than the newest committed step.

    Raises:
        OSError: the store does not answer.
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


def _steps(
    objects: Objects, parse: Callable[[str], int | None] = step_of
) -> Iterator[tuple[int, str]]:
    names = objects.list("").folders
    steps = ((step, name, name) for name in names if (step := parse(name)) is not None)
    yield from newest_first(steps)


def _is_committed(objects: Objects, name: str) -> bool:
    markers = markers_of(name, in_bucket=True)
    return any(objects.exists(f"{name}/{marker.file}") for marker in markers)
