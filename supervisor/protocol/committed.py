"""Recognises committed checkpoints, from outside the program that writes them.

Orbax commits on POSIX by renaming `N.orbax-checkpoint-tmp` to `N`, and from 0.12.3 also writes
`commit_success.txt`. On object stores the final name exists from the start, and only the marker
shows the commit. `_CHECKPOINT_METADATA` has `commit_timestamp_nsecs`, set just before the rename:
this proves a commit on POSIX together with the final name, and never on an object store.
Modification times prove nothing. Others write a marker of their own last; `checkpoint_layouts` has
all of them.

Other programs commit nothing: such a step counts only if the caller has a proof for it.

A checkpoint of an older Orbax that is copied from a disk into a bucket has no marker there, and
looks like a save that is still running.

Anybody may have written these files, so `protocol.reading` reads them. What it refuses (a FIFO with
the name of a marker, metadata of a terabyte) commits nothing, and `refused` names it. The directory
itself and a step in it may be links: a person made them, and they lead to ordinary steps.

A checkpoint counts as missing only if the storage says so. If it cannot be read now (EIO, EACCES,
ESTALE), that is an error: a caller that took it for missing would go back to an older step, and
overwrite the one that could not be read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from errno import ELOOP
from pathlib import Path
from typing import Any, Protocol

from .checkpoint_layouts import (
    MARKER,
    METADATA,
    NESTED,
    TEMPORARY,
    Marker,
    markers_of,
    newest_first,
    step_of,
)
from .messages import printable
from .reading import UnreadableError, parse_object, read

__all__ = ["MARKER", "METADATA", "step_of"]

Proof = Callable[[Path], bool]
"""Returns True for a step that nothing commits if it is proven complete all the same."""


class OwnNames(Protocol):
    """Which names of steps count: those of a layout that the config describes, or some of the usual
    ones."""

    @property
    def is_described(self) -> bool:
        """Whether the config describes the layout, so that no other one counts."""
        ...

    @property
    def marker(self) -> str | None:
        """The file in a step's folder that commits it; None: a step is a file without a commit."""
        ...

    def step_of(self, name: str) -> int | None:
        """Parse the step from a name; None: the name is not that of a step."""
        ...


MAX_METADATA = 4 << 20
"""Largest metadata file in bytes. Orbax writes a few hundred, and a program may add its own."""
_MAKE_A_FILE = {
    "gs": "echo copied | gcloud storage cp -",
    "s3": "echo copied | aws s3 cp -",
}
"""The command that makes a file, without the URI at its end, by the URI's scheme."""


def committing_files(name: str) -> tuple[str, ...]:
    """Return the relative paths of all files that may commit the step in a directory `name`. A save
    writes those that it has anew."""
    marked = (marker.file for marker in markers_of(name, in_bucket=False))
    return (*marked, METADATA, *(f"{inner}/{METADATA}" for inner in NESTED))


def was_committed(metadata: bytes | None) -> bool:
    """True if the content of `_CHECKPOINT_METADATA` (None: no such file) says that the step was
    committed: here, or on the disk that it was copied from."""
    try:
        return bool(parse_object(metadata or b"", METADATA).get("commit_timestamp_nsecs"))
    except UnreadableError:
        return False


def is_committed(
    path: Path, *, posix: bool = True, proven: Proof | None = None, own: OwnNames | None = None
) -> bool:
    """True if the checkpoint in `path`, a folder or a file, is committed, so that it can be
    restored.

    `posix` is False where a directory appears under its final name before it is complete: on an
    object store and on a mount of one. `proven` decides about a step that nothing commits; without
    it, or where `posix` is False, no such step is committed. With `own`, only its layout counts.

    Raises:
        OSError: it cannot be read now.
    """
    if (step_of if own is None else own.step_of)(path.name) is None:
        return False
    if isinstance(path, Path) and _is_empty_folder(path):
        return False
    if own is not None and own.is_described:
        return _is_own_committed(path, own, posix, proven)
    in_bucket = not isinstance(path, Path)
    if any(_is_valid(marker, path) for marker in markers_of(path.name, in_bucket=in_bucket)):
        return True
    if posix and (was_committed(_read(path / METADATA)) or _holds_a_whole_checkpoint(path)):
        return True
    return posix and proven is not None and proven(path)


def committed_at(directory: Path) -> int | None:
    """Return when the checkpoint in `directory` was committed, in nanoseconds since the epoch.

    The time is from its metadata, so a copy of the checkpoint has the same. None: the metadata does
    not say.

    Raises:
        OSError: it cannot be read now.
    """
    try:
        content = parse_object(_read(directory / METADATA) or b"", METADATA)
    except UnreadableError:
        return None
    at = content.get("commit_timestamp_nsecs")
    return at if isinstance(at, int) else None


def committed_steps(
    root: Path, *, posix: bool = True, proven: Proof | None = None, own: OwnNames | None = None
) -> Iterator[tuple[int, Path]]:
    """Yield every committed checkpoint under `root` as (step, path), newest first; for `proven` and
    `own` see `is_committed`.

    Raises:
        OSError: the storage does not say now whether the next checkpoint is committed.
    """
    for step, entry in step_entries(root, own):
        if is_committed(entry, posix=posix, proven=proven, own=own):
            yield step, entry


def unmarked_copies(root: Path) -> Iterator[str]:
    """Yield the names of steps under `root`, a mounted bucket, that were committed on a disk and
    copied here without a marker. Only steps above the newest committed one, newest first."""
    for _, entry in step_entries(root):
        if is_committed(entry, posix=False):
            return
        if was_committed(_read(entry / METADATA)):
            yield entry.name


def unreadable_markers(root: Path) -> Iterator[str]:
    """Yield a warning for each thing in a step under `root` that has the name of one of its markers
    or of metadata, but is no file that can be read, so that the step does not count; and for each
    step that is a link to itself. Only above the newest committed step."""
    for _, entry in step_entries(root):
        if is_committed(entry):
            return
        if _is_endless_link(entry):
            yield f"{printable(str(entry))} is a link that leads to no file: remove it"
            continue
        is_json = {each.file: each.is_json for each in markers_of(entry.name, in_bucket=False)}
        for name, is_read in {**is_json, METADATA: True}.items():
            path = entry / name
            try:
                if is_read:
                    read(path, MAX_METADATA)
                elif not _is_regular_file(path) and path.lstat():
                    read(path, 0)
            except UnreadableError as error:
                yield f"{error}; the checkpoint is not used"
            except OSError:
                continue


def unmarked_warning(place: str) -> str:
    """Return the warning for a checkpoint in `place`, a URI or a directory, that was committed on a
    disk and copied into a bucket without its marker."""
    command = _MAKE_A_FILE.get(place.partition("://")[0], "touch")
    return (
        f"{place} looks like a checkpoint that was saved on a disk and copied here without the "
        f"marker of its commit, and is not used: once the copy is complete, run `{command} "
        f"{place}/{MARKER}`; otherwise remove it"
    )


def step_entries(root: Path, own: OwnNames | None = None) -> list[tuple[int, Path]]:
    """Return what has the name of a step under `root` as (step, path), newest first: folders and
    files, committed or not.

    Raises:
        OSError: `root` cannot be read now.
    """
    parse = step_of if own is None else own.step_of
    try:
        found = [
            (step, path.name, path)
            for path in root.iterdir()
            if (step := parse(path.name)) is not None
        ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return newest_first(found)


def _is_own_committed(path: Path, own: OwnNames, posix: bool, proven: Proof | None) -> bool:
    if own.marker is not None:
        return _is_regular_file(path / own.marker)
    return posix and proven is not None and proven(path)


def _is_empty_folder(path: Path) -> bool:
    """True if `path` is a folder without entries: there may be thousands, which one look settles.
    If it cannot be read, whoever wants more of it says why."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def _holds_a_whole_checkpoint(step: Path) -> bool:
    """True if a folder in `step` is a whole checkpoint of Orbax, committed by its rename, and none
    is being written."""
    if not any(was_committed(_read(step / name / METADATA)) for name in NESTED):
        return False
    return not any(TEMPORARY in path.name for path in step.iterdir())


def _is_valid(marker: Marker, step: Path) -> bool:
    path = step / marker.file
    if not marker.is_json:
        return _is_regular_file(path)
    try:
        parse_object(_read(path) or b"", path)
    except UnreadableError:
        return False
    return True


def _is_regular_file(path: Path) -> bool:
    if not isinstance(path, Path):
        return path.exists()  # an object in a bucket
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == ELOOP:  # a link to itself never leads to a file
            return False
        raise


def _is_endless_link(path: Path) -> bool:
    """True if `path` is a link that leads back to itself."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == ELOOP
    return False


def _read(path: Path) -> bytes | None:
    """Return the content of a file; None: there is no file, or it is not a readable one."""
    try:
        return read(path, MAX_METADATA) if isinstance(path, Path) else _of_object(path)
    except (FileNotFoundError, NotADirectoryError, UnreadableError):
        return None


def _of_object(path: Any) -> bytes:
    """Return the content of an object in a bucket; `path` is an etils path
    (`trainer.bucket_paths`)."""
    if path.stat().length > MAX_METADATA:
        raise UnreadableError(path, f"has more than {MAX_METADATA} bytes")
    content: bytes = path.read_bytes()
    return content
