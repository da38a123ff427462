"""Requests of people to a job: each is a file in model_dir, which the supervisor reads and removes.

If no supervisor runs, the next one reads it. The only request so far is to end a quarantine.
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
"""Bytes of a request; enough for some thousand names."""
_MAX_NAME = 200
_MAX_REQUESTS = 100
"""The most requests that one call of `take_requests` reads."""


def write_clear_request(model_dir: Path, units: tuple[str, ...]) -> None:
    """Write the request to end the quarantine of `units` (empty: of all units) into `model_dir`."""
    path, data = clear_request_file(units)
    target = model_dir / path
    target.parent.mkdir(exist_ok=True)
    written = target.with_name(f".{target.name}.tmp")
    with removal.create_temporary(written, below=model_dir) as file:
        file.write(data)
    written.replace(target)


def clear_request_file(units: tuple[str, ...]) -> tuple[str, bytes]:
    """Returns the same request as a file: its path relative to model_dir, and its content."""
    return f"{_FOLDER}/{uuid.uuid4().hex}{_SUFFIX}", json.dumps(list(units)).encode()


def take_requests(model_dir: Path, refused: Tell) -> Iterator[tuple[str, ...]]:
    """Yields the units of each request in `model_dir`, and removes its file.

    A file that is no valid request stays where it is, and `refused` gets a notice about it.

    Raises:
        OSError: the folder cannot be read, or a request cannot be removed.
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
            text = f"a request cannot be read: {error}"
            refused(Notice("request-unheard", text, reason=str(error)))
            continue
        removal.remove_file(Place.REQUEST, file, below=model_dir)
        yield units


def _units(told: object, file: Path) -> tuple[str, ...]:
    if not isinstance(told, list) or not all(isinstance(unit, str) for unit in told):
        raise UnreadableError(file, "is not a list of names", "remove it")
    return tuple(printable(unit[:_MAX_NAME]) for unit in told)
