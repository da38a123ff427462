"""What a committed checkpoint is, seen from outside the program that writes it.

Orbax commits on POSIX by renaming `N.orbax-checkpoint-tmp` to `N`, and from 0.12.3 also writes
`commit_success.txt`; on object stores the final name exists from the start and only the marker
tells. `_CHECKPOINT_METADATA` carries `commit_timestamp_nsecs`, set just before the rename: enough
on POSIX together with the final name, never enough on an object store. Modification times say
nothing. AXLearn writes `index` last, Levanter `metadata.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

_STEP_NAME = re.compile(r"(?:[A-Za-z][\w.-]*[_-])?(\d{1,18})")
_TEMPORARY = ".orbax-checkpoint-tmp"


def step_of(name: str) -> int | None:
    """The step in a checkpoint's directory name, `[prefix_][zero padding]step`; None: not one."""
    if _TEMPORARY in name:
        return None
    match = _STEP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def is_committed(directory: Path, *, posix: bool = True) -> bool:
    """Whether the checkpoint in `directory` is finalized, hence restorable.

    `posix` is False where a directory appears under its final name before it is complete: on an
    object store and on a mount of one.
    """
    if step_of(directory.name) is None:
        return False
    if (directory / "commit_success.txt").exists():
        return True
    if directory.name.startswith("step_") and (directory / "index").exists():
        return True
    metadata = _json(directory / "_CHECKPOINT_METADATA") if posix else None
    if metadata is not None:
        return bool(metadata.get("commit_timestamp_nsecs"))
    return directory.name.startswith("step-") and _json(directory / "metadata.json") is not None


def committed_steps(root: Path, *, posix: bool = True) -> Iterator[tuple[int, Path]]:
    """Every committed checkpoint under `root` with its step, newest first."""
    try:
        entries = [
            (step, entry) for entry in root.iterdir() if (step := step_of(entry.name)) is not None
        ]
    except (FileNotFoundError, NotADirectoryError):
        return
    for step, entry in sorted(entries, reverse=True):
        if is_committed(entry, posix=posix):
            yield step, entry


def _json(path: Path) -> dict[str, object] | None:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
