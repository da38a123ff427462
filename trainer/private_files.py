"""Files that nobody else can have written, and that are what was written: fit to be unpickled.

The directory and the file must belong to this user and be writable by nobody else, and neither may
be a link. A digest in the first line tells damage.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path


def make(directory: Path) -> None:
    """Make `directory`, or see that it is one that only this user can write to.

    Raises:
        OSError: it is not, or cannot be made.
    """
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or not _only_we_write(status):
        raise PermissionError(
            f"{directory} must be a directory of this user that nobody else can write to: remove "
            "it, and it is made so"
        )


def _only_we_write(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read(path: Path) -> bytes:
    """What `write` wrote.

    Raises:
        OSError: it cannot be read; also where it is a link.
        ValueError: it is somebody else's, or not what was written.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not _only_we_write(os.fstat(file.fileno())):
            raise ValueError("others can write to the file")
        digest, content = file.readline(), file.read()
    if digest != _digest(content).encode() + b"\n":
        raise ValueError("the file is damaged")
    return content


def write(path: Path, content: bytes) -> None:
    """Make `content` what `read` gives: whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_digest(content).encode() + b"\n")
        file.write(content)
    temporary.replace(path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
