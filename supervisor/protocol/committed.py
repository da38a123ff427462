"""What a committed checkpoint is, seen from outside the program that writes it.

Orbax commits on POSIX by renaming `N.orbax-checkpoint-tmp` to `N`, and from 0.12.3 also writes
`commit_success.txt`; on object stores the final name exists from the start and only the marker
tells. `_CHECKPOINT_METADATA` carries `commit_timestamp_nsecs`, set just before the rename: enough
on POSIX together with the final name, never enough on an object store. Modification times say
nothing. AXLearn writes `index` last, Levanter `metadata.json`.

A checkpoint of an older Orbax that is copied from a disk into a bucket has no marker there, and
looks like a save that is going on.

Anybody may have written what is here: it is read by `protocol.reading`. What that refuses (a FIFO
under the name of a marker, metadata of a terabyte) commits nothing, and `refused` names it. The
directory itself, and a step in it, may be a link: a person made it, and it leads to a step like any
other.

A checkpoint counts as missing only if the storage says so. If it cannot be read now (EIO, EACCES,
ESTALE), that is an error: a caller that took it for missing would go back to an older step, and
overwrite what could not be read.
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
"""Largest metadata file in bytes: Orbax's has some hundred, and a program may add its own."""
_TEMPORARY = ".orbax-checkpoint-tmp"
_MAKE_A_FILE = {
    "gs": "echo copied | gcloud storage cp -",
    "s3": "echo copied | aws s3 cp -",
}
"""The command to put before a URI, by its scheme."""


def step_of(name: str) -> int | None:
    """Parse the step from a checkpoint's directory name, `[prefix_][zero padding]step`; None: the
    name is not of that form."""
    if _TEMPORARY in name:
        return None
    match = _STEP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def markers(name: str) -> tuple[str, ...]:
    """Return the names of the files that commit the step in a directory `name`: each of them is
    written last."""
    if name.startswith("step_"):
        return (MARKER, "index")
    return (MARKER, "metadata.json") if name.startswith("step-") else (MARKER,)


def was_committed(metadata: bytes | None) -> bool:
    """Whether the content of `_CHECKPOINT_METADATA` (None: no such file) says that the step was
    committed: here, or on the disk that it was copied from."""
    try:
        return bool(parse_object(metadata or b"", METADATA).get("commit_timestamp_nsecs"))
    except UnreadableError:
        return False


def is_committed(directory: Path, *, posix: bool = True) -> bool:
    """Whether the checkpoint in `directory` is finalized, hence restorable.

    `posix` is False where a directory appears under its final name before it is complete: on an
    object store and on a mount of one.

    Raises:
        OSError: it cannot be read now.
    """
    if step_of(directory.name) is None:
        return False
    if any(_is_whole(directory / marker) for marker in markers(directory.name)):
        return True
    return posix and was_committed(_read(directory / METADATA))


def committed_at(directory: Path) -> int | None:
    """Return when the checkpoint in `directory` was committed, in nanoseconds since the epoch, from
    its metadata, which a copy shares. None: the metadata does not say.

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
        OSError: it cannot be told now whether the next one is committed.
    """
    for step, entry in _steps(root):
        if is_committed(entry, posix=posix):
            yield step, entry


def unmarked_copies(root: Path) -> Iterator[str]:
    """Yield the names of steps under `root`, a mounted bucket, that were committed on a disk and
    copied here without a marker: those above the newest committed step, newest first."""
    for _, entry in _steps(root):
        if is_committed(entry, posix=False):
            return
        if was_committed(_read(entry / METADATA)):
            yield entry.name


def refused(root: Path) -> Iterator[str]:
    """Yield a warning for each file under `root` that has the name of a marker or metadata, but is
    no readable file, so its step does not count; only above the newest committed step."""
    for _, entry in _steps(root):
        if is_committed(entry):
            return
        for name in (*markers(entry.name), METADATA):
            path = entry / name
            try:
                if path.suffix == ".json" or name == METADATA:
                    read(path, MAX_METADATA)
                elif not _is_file(path) and path.lstat():
                    read(path, 0)
            except UnreadableError as error:
                yield f"{error}; the checkpoint is not used"
            except OSError:
                continue


def unmarked(place: str) -> str:
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


def _is_whole(path: Path) -> bool:
    if path.suffix != ".json":
        return _is_file(path)
    try:
        parse_object(_read(path) or b"", path)
    except UnreadableError:
        return False
    return True


def _is_file(path: Path) -> bool:
    if not isinstance(path, Path):
        return path.exists()  # an object in a bucket
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == ELOOP:  # a link to itself leads nowhere, now and later
            return False
        raise


def _read(path: Path) -> bytes | None:
    """Return the content of a file; None: there is none, or it is no readable file."""
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
