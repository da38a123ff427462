"""Looks for checkpoints around the place where none is seen: a hint for a person, and no more.

Bounded, because what is around may be a home directory. Nothing is read but names, times and the
signs of a commit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from supervisor.protocol.committed import is_committed, step_of

_MAX_ENTRIES = 5000
_MAX_DEPTH = 5
_MAX_TOLD = 3
_NOT_THERE = re.compile(r"\..*|__pycache__|node_modules|compile_cache|drills|\w+_restartable")
_LIKE_ONE = re.compile(
    r"(?i)(.*(ckpt|checkpoint|step|epoch)s?[-_.]?\d+"
    r"|.*\.(pth?|ckpt|safetensors|msgpack|npz|pkl|pickle|h5|keras|eqx|orbax))"
)


def found_nearby(place: Path | None, roots: Sequence[Path], since: float) -> str:
    """What there is below `roots`, and not in `place`, that may be the checkpoints: steps that are
    committed, or else what has such a name and was changed after the Unix time `since`."""
    elsewhere: dict[Path, int] = {}
    alike: list[str] = []
    for entry in islice(_below(roots), _MAX_ENTRIES):
        step = step_of(entry.name)
        try:
            if step is not None and entry.parent != place and is_committed(entry):
                elsewhere[entry.parent] = max(step, elsewhere.get(entry.parent, 0))
            elif _LIKE_ONE.fullmatch(entry.name) and entry.stat().st_mtime >= since:
                alike.append(str(entry))
        except OSError:
            continue
    if elsewhere:
        places = [f"{path} (newest: step {step})" for path, step in elsewhere.items()]
        told = " and ".join(places[:_MAX_TOLD])
        return f"committed checkpoints are in {told}: set trainer.init.checkpoint.directory"
    if alike:
        told = ", ".join(sorted(alike)[-_MAX_TOLD:])
        return f"new there, but in no layout that is known: {told}"
    return f"nothing like a checkpoint was found below {' or '.join(map(str, roots))}"


def _below(roots: Sequence[Path]) -> Iterator[Path]:
    """What is below `roots`, level by level; what cannot be read is passed over."""
    level, seen = list(roots), set[Path]()
    for _ in range(_MAX_DEPTH):
        folders: list[Path] = []
        for folder in level:
            if folder in seen:
                continue
            seen.add(folder)
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                if _NOT_THERE.fullmatch(entry.name):
                    continue
                yield Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
        level = folders
