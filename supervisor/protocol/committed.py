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

"There is none" is only what the storage says so. Where nobody can look now (EIO, EACCES, ESTALE) it
is an error: whoever took it for "there is none" would go back to an older step, and save over what
could not be read.
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
"""Bytes: some hundred as a rule, with whatever a program adds of its own."""
_TEMPORARY = ".orbax-checkpoint-tmp"
_MAKE_A_FILE = {
    "gs": "echo copied | gcloud storage cp -",
    "s3": "echo copied | aws s3 cp -",
}
"""The command to put before a URI, by its scheme."""


def step_of(name: str) -> int | None:
    """The step in a checkpoint's directory name, `[prefix_][zero padding]step`; None: not one."""
    if _TEMPORARY in name:
        return None
    match = _STEP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def markers(name: str) -> tuple[str, ...]:
    """The files of which each is written last, and so commits the step in a directory `name`."""
    if name.startswith("step_"):
        return (MARKER, "index")
    return (MARKER, "metadata.json") if name.startswith("step-") else (MARKER,)


def was_committed(metadata: bytes | None) -> bool:
    """Whether what `_CHECKPOINT_METADATA` holds (None: there is none) says that the step was
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
        OSError: nobody can look now.
    """
    if step_of(directory.name) is None:
        return False
    if any(_is_whole(directory / marker) for marker in markers(directory.name)):
        return True
    return posix and was_committed(_read(directory / METADATA))


def committed_at(directory: Path) -> int | None:
    """When the checkpoint in `directory` was committed (ns), as its metadata has it; no copy of it
    has another time. None: the metadata does not say.

    Raises:
        OSError: nobody can look now.
    """
    try:
        content = parse_object(_read(directory / METADATA) or b"", METADATA)
    except UnreadableError:
        return None
    at = content.get("commit_timestamp_nsecs")
    return at if isinstance(at, int) else None


def committed_steps(root: Path, *, posix: bool = True) -> Iterator[tuple[int, Path]]:
    """Every committed checkpoint under `root` with its step, newest first.

    Raises:
        OSError: of the next one, nobody can tell now whether it is committed.
    """
    for step, entry in _steps(root):
        if is_committed(entry, posix=posix):
            yield step, entry


def unmarked_copies(root: Path) -> Iterator[str]:
    """The names of steps under `root`, a mount of a bucket, above the newest committed one, that
    were committed on a disk and have no marker here; newest first."""
    for _, entry in _steps(root):
        if is_committed(entry, posix=False):
            return
        if was_committed(_read(entry / METADATA)):
            yield entry.name


def refused(root: Path) -> Iterator[str]:
    """What is to be told of files under `root`, above the newest committed step, that would commit
    a step if they were what their names say, and are not even files that can be read."""
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
    """What a person is told of a checkpoint in `place`, a URI or a directory, that was committed on
    a disk and copied into a bucket without its marker."""
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
        return path.exists()  # an object of a bucket
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == ELOOP:  # a link to itself: nothing, and for good
            return False
        raise


def _read(path: Path) -> bytes | None:
    """None: there is none, or nothing that can be read."""
    try:
        return read(path, MAX_METADATA) if isinstance(path, Path) else _of_object(path)
    except (FileNotFoundError, NotADirectoryError, UnreadableError):
        return None


def _of_object(path: Any) -> bytes:
    """What an object of a bucket holds, whose `path` is one of etils (`trainer.bucket_paths`)."""
    if path.stat().length > MAX_METADATA:
        raise UnreadableError(path, f"has more than {MAX_METADATA} bytes")
    content: bytes = path.read_bytes()
    return content
