"""What a committed checkpoint is, seen from outside the program that writes it.

Orbax commits on POSIX by renaming `N.orbax-checkpoint-tmp` to `N`, and from 0.12.3 also writes
`commit_success.txt`; on object stores the final name exists from the start and only the marker
tells. `_CHECKPOINT_METADATA` carries `commit_timestamp_nsecs`, set just before the rename: enough
on POSIX together with the final name, never enough on an object store. Modification times say
nothing. AXLearn writes `index` last, Levanter `metadata.json`.

A checkpoint of an older Orbax that is copied from a disk into a bucket has no marker there, and
looks like a save that is going on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

MARKER = "commit_success.txt"
METADATA = "_CHECKPOINT_METADATA"

_STEP_NAME = re.compile(r"(?:[A-Za-z][\w.-]*[_-])?(\d{1,18})")
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
    return bool((_object(metadata) or {}).get("commit_timestamp_nsecs"))


def is_committed(directory: Path, *, posix: bool = True) -> bool:
    """Whether the checkpoint in `directory` is finalized, hence restorable.

    `posix` is False where a directory appears under its final name before it is complete: on an
    object store and on a mount of one.
    """
    if step_of(directory.name) is None:
        return False
    if any(_is_whole(directory / marker) for marker in markers(directory.name)):
        return True
    return posix and was_committed(_read(directory / METADATA))


def committed_steps(root: Path, *, posix: bool = True) -> Iterator[tuple[int, Path]]:
    """Every committed checkpoint under `root` with its step, newest first."""
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
    return path.exists() and (path.suffix != ".json" or _object(_read(path)) is not None)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _object(content: bytes | None) -> dict[str, object] | None:
    try:
        body = json.loads(content or b"")
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None
