"""Recognises committed checkpoints, from outside the program that writes them.

Orbax commits on POSIX by renaming `N.orbax-checkpoint-tmp` to `N`, and from 0.12.3 also writes
`commit_success.txt`. On object stores the final name exists from the start, and only the marker
shows the commit. `_CHECKPOINT_METADATA` has `commit_timestamp_nsecs`, set just before the rename:
this proves a commit on POSIX together with the final name, and never on an object store.
Modification times prove nothing. AXLearn writes `index` last, Levanter `metadata.json`.

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

import re
import stat
from collections.abc import Iterator
from errno import ELOOP
from pathlib import Path
from typing import Any

from .reading import UnreadableError, parse_object, read

MARKER = "commit_success.txt"
METADATA = "_CHECKPOINT_METADATA"

_STEP_NAME = re.compile(r"(?:[A-Za-z][\w.-]*[_-])?(\d{1,18})")
MAX_METADATA = 4 << 20
"""Largest metadata file in bytes. Orbax writes a few hundred, and a program may add its own."""
_TEMPORARY = ".orbax-checkpoint-tmp"
_MAKE_A_FILE = {
    "gs": "echo copied | gcloud storage cp -",
    "s3": "echo copied | aws s3 cp -",
}
"""The command that makes a file, without the URI at its end, by the URI's scheme."""


def step_of(name: str) -> int | None:
    """Parse the step from a checkpoint's directory name, `[prefix_][zero padding]step`; None: the
    name is not of that form."""
    if _TEMPORARY in name:
        return None
    match = _STEP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def markers(name: str) -> tuple[str, ...]:
    """Return the names of files that commit the step in a directory `name`: a program writes one of
    them last."""
    if name.startswith("step_"):
        return (MARKER, "index")
    return (MARKER, "metadata.json") if name.startswith("step-") else (MARKER,)


def was_committed(metadata: bytes | None) -> bool:
    """True if the content of `_CHECKPOINT_METADATA` (None: no such file) says that the step was
    committed: here, or on the disk that it was copied from."""
    try:
        return bool(parse_object(metadata or b"", METADATA).get("commit_timestamp_nsecs"))
    except UnreadableError:
        return False


def is_committed(directory: Path, *, posix: bool = True) -> bool:
    """True if the checkpoint in `directory` is committed, so that it can be restored.

    `posix` is False where a directory appears under its final name before it is complete: on an
    object store and on a mount of one.

    Raises:
        OSError: it cannot be read now.
    """
    if step_of(directory.name) is None:
        return False
    if any(_is_valid_marker(directory / marker) for marker in markers(directory.name)):
        return True
    return posix and was_committed(_read(directory / METADATA))


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


def committed_steps(root: Path, *, posix: bool = True) -> Iterator[tuple[int, Path]]:
    """Yield every committed checkpoint under `root` as (step, path), newest first.

    Raises:
        OSError: the storage does not say now whether the next checkpoint is committed.
    """
    for step, entry in _steps(root):
        if is_committed(entry, posix=posix):
            yield step, entry


def unmarked_copies(root: Path) -> Iterator[str]:
    """Yield the names of steps under `root`, a mounted bucket, that were committed on a disk and
    copied here without a marker. Only steps above the newest committed one, newest first."""
    for _, entry in _steps(root):
        if is_committed(entry, posix=False):
            return
        if was_committed(_read(entry / METADATA)):
            yield entry.name


def unreadable_markers(root: Path) -> Iterator[str]:
    """Yield a warning for each file under `root` that has the name of a marker or of metadata, but
    cannot be read, so that its step does not count. Only above the newest committed step."""
    for _, entry in _steps(root):
        if is_committed(entry):
            return
        for name in (*markers(entry.name), METADATA):
            path = entry / name
            try:
                if path.suffix == ".json" or name == METADATA:
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


def _steps(root: Path) -> list[tuple[int, Path]]:
    try:
        found = [
            (step, path) for path in root.iterdir() if (step := step_of(path.name)) is not None
        ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, reverse=True)


def _is_valid_marker(path: Path) -> bool:
    if path.suffix != ".json":
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
