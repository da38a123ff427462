"""What people ask of a job from outside: files in model_dir that its supervisor takes away.

A request is heard by the supervisor that runs, or else by the next one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

_FOLDER = "requests"
_SUFFIX = ".clear-quarantine.json"


def ask_to_clear(model_dir: Path, units: tuple[str, ...]) -> None:
    """Leave the request to end the quarantine of `units` (none named: of all)."""
    path, data = to_clear(units)
    target = model_dir / path
    target.parent.mkdir(exist_ok=True)
    written = target.with_name(f".{target.name}")
    written.write_bytes(data)
    written.replace(target)


def to_clear(units: tuple[str, ...]) -> tuple[str, bytes]:
    """The same request as a file: its path in model_dir, and its content."""
    return f"{_FOLDER}/{uuid.uuid4().hex}{_SUFFIX}", json.dumps(list(units)).encode()


def taken(model_dir: Path) -> Iterator[tuple[str, ...]]:
    """The units of each request that was left since, taken away with it.

    Raises:
        OSError, ValueError: a request cannot be read or taken away; it stays where it is.
    """
    folder = model_dir / _FOLDER
    if not folder.is_dir():
        return
    for file in sorted(folder.glob(f"*{_SUFFIX}")):
        units = tuple(str(unit) for unit in json.loads(file.read_text(encoding="utf-8")))
        file.unlink()
        yield units
