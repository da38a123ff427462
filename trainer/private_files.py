"""Files that only this user can have written and that are undamaged, so it is safe to unpickle
them.

The directory and the file must belong to this user, nobody else may be able to write to them, and
neither may be a link. A digest in the first line detects damage.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

from supervisor.protocol import private_folder, removal
from supervisor.protocol.reading import open_file

_LARGEST = 2 << 30
"""Bytes; no compiler writes a larger file."""


def make_directory(directory: Path) -> None:
    """Make `directory` and its parents, or check that only this user can write to it.

    Raises:
        OSError: others can write to it, or it cannot be made.
    """
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_folder.make(directory)


def read(path: Path) -> bytes:
    """Return the content that `write` wrote.

    Raises:
        OSError: it cannot be read, is a link, or is no regular file.
        ValueError: others can write to the file, it is too large, or it is damaged.
    """
    with io.BufferedReader(open_file(path)) as file:
        status = os.fstat(file.fileno())
        if not private_folder.only_we_write(status):
            raise ValueError("others can write to the file")
        if status.st_size > _LARGEST:
            raise ValueError(f"the file has {status.st_size} bytes, more than {_LARGEST}")
        digest, content = file.readline(), file.read()
    if digest != _digest(content).encode() + b"\n":
        raise ValueError("the file is damaged")
    return content


def write(path: Path, content: bytes) -> None:
    """Write `content` to a file for `read`, atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    with removal.create_temporary(temporary, below=path.parent, mode=0o600) as file:
        file.write(_digest(content).encode() + b"\n")
        file.write(content)
    temporary.replace(path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
