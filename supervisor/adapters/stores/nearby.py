"""Looks for checkpoints near the configured place if that has none, as a hint for a person.

The search reads a bounded number of entries, because it may run in a home directory. It reads only
names, modification times and the signs of a commit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from supervisor.protocol.committed import is_committed, step_of

_MAX_ENTRIES = 5000
"""The most entries to read in all folders together."""
_MAX_DEPTH = 5
_MAX_TOLD = 3
_KEY = "trainer.init.checkpoint.directory"
_SKIPPED = re.compile(r"\..*|__pycache__|node_modules|compile_cache|drills|\w+_restartable")
_LOOKS_LIKE_CHECKPOINT = re.compile(
    r"(?i)(.*(ckpt|checkpoint|step|epoch)s?[-_.]?\d+"
    r"|.*\.(pth?|ckpt|safetensors|msgpack|npz|pkl|pickle|h5|keras|eqx|orbax))"
)


def found_nearby(place: Path | None, roots: Sequence[Path], since: float) -> str:
    """Returns a sentence about what below `roots`, but not in `place`, may be the checkpoints.

    It names committed steps; or if there are none, entries whose name looks like a checkpoint's
    and that were changed after the Unix time `since`.
    """
    elsewhere: dict[Path, int] = {}
    alike: list[str] = []
    for entry in _below(roots):
        step = step_of(entry.name)
        try:
            if step is not None and entry.parent != place and is_committed(entry):
                elsewhere[entry.parent] = max(step, elsewhere.get(entry.parent, 0))
            elif _LOOKS_LIKE_CHECKPOINT.fullmatch(entry.name) and entry.stat().st_mtime >= since:
                alike.append(str(entry))
        except OSError:
            continue
    if elsewhere:
        places = [f"{path} (newest: step {step})" for path, step in elsewhere.items()]
        told = " and ".join(places[:_MAX_TOLD])
        return f"committed checkpoints are in {told}: set {_KEY}"
    if alike:
        told = ", ".join(sorted(alike)[-_MAX_TOLD:])
        return f"changed since the start, but in no known checkpoint layout: {told}"
    below = " or ".join(map(str, roots))
    return f"nothing like a checkpoint was found below {below}: set {_KEY} if they are elsewhere"


def _below(roots: Sequence[Path]) -> Iterator[Path]:
    """Yields the entries below `roots`, level by level; skips folders that cannot be read."""
    level, seen, left = list(roots), set[Path](), _MAX_ENTRIES
    for _ in range(_MAX_DEPTH):
        folders: list[Path] = []
        for folder in level:
            if folder in seen:
                continue
            seen.add(folder)
            entries = _entries(folder, left)
            left -= len(entries)
            for entry in entries:
                if _SKIPPED.fullmatch(entry.name):
                    continue
                yield Path(entry.path)
                if _is_folder(entry):
                    folders.append(Path(entry.path))
        level = folders


def _entries(folder: Path, most: int) -> Sequence[os.DirEntry[str]]:
    """Returns at most `most` entries of `folder`, sorted by name: the first ones that the system
    lists."""
    try:
        with os.scandir(folder) as listing:
            return sorted(islice(listing, most), key=lambda entry: entry.name)
    except OSError:
        return ()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # the listing has no type on some file systems: this asks for it
        return False
