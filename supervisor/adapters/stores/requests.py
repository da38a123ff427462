"""What people ask of a job from outside: files in model_dir that its supervisor takes away.

A request is heard by the supervisor that runs, or else by the next one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

from supervisor.host.notice import Notice, Tell
from supervisor.protocol import removal
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import UnreadableError, read_json
from supervisor.protocol.removal import Place

_FOLDER = "requests"
_SUFFIX = ".clear-quarantine.json"
_MAX_SIZE = 64 << 10
"""Bytes of a request: some thousand names."""
_MAX_NAME = 200
_MAX_REQUESTS = 100
"""Files that are looked at in one go."""


def ask_to_clear(model_dir: Path, units: tuple[str, ...]) -> None:
    """Leave the request to end the quarantine of `units` (none named: of all)."""
    path, data = to_clear(units)
    target = model_dir / path
    target.parent.mkdir(exist_ok=True)
    written = target.with_name(f".{target.name}.tmp")
    with removal.temporary(written, below=model_dir) as file:
        file.write(data)
    written.replace(target)


def to_clear(units: tuple[str, ...]) -> tuple[str, bytes]:
    """The same request as a file: its path in model_dir, and its content."""
    return f"{_FOLDER}/{uuid.uuid4().hex}{_SUFFIX}", json.dumps(list(units)).encode()


def taken(model_dir: Path, refused: Tell) -> Iterator[tuple[str, ...]]:
    """The units of each request that was left since, taken away with it.

    A file that is no request stays where it is, and `refused` is told of it.

    Raises:
        OSError: nobody can look, or a request cannot be taken away.
    """
    folder = model_dir / _FOLDER
    if not folder.is_dir():
        return
    for file in sorted(folder.glob(f"*{_SUFFIX}"))[:_MAX_REQUESTS]:
        try:
            units = _units(read_json(file, _MAX_SIZE, below=model_dir), file)
        except FileNotFoundError:
            continue
        except OSError as error:
            text = f"a request cannot be heard: {error}"
            refused(Notice("request-unheard", text, reason=str(error)))
            continue
        removal.file(Place.REQUEST, file, below=model_dir)
        yield units


def _units(told: object, file: Path) -> tuple[str, ...]:
    if not isinstance(told, list) or not all(isinstance(unit, str) for unit in told):
        raise UnreadableError(file, "is not a list of names", "remove it")
    return tuple(printable(unit[:_MAX_NAME]) for unit in told)
