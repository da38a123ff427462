"""Reads a secret from a file that a person has named, if no other user can read or write the file.

A secret that is mounted into a container is a link, and so is its folder. So links are followed,
and the opened file is checked: it must be a regular file of this user or of root, without any
permissions for its group or for others.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from supervisor.protocol.reading import UnreadableError, open_file, read_open_file

_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read(path: Path, limit: int) -> bytes:
    """Return all of the file `path`, of at most `limit` bytes.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        UnreadableError: it is not a regular file, another user can read or write it, or it is
            larger.
        OSError: it cannot be read now.
    """
    with open_file(path, linked=True) as file:
        if (why := why_exposed(os.fstat(file.fileno()), os.geteuid())) is not None:
            raise UnreadableError(path, why, f"chown it, or chmod 600 {path}")
        return read_open_file(file, path, limit)


def why_exposed(status: os.stat_result, user: int) -> str | None:
    """Return why a user besides `user` and root may know the content of a file of that `status`;
    None: no other user can."""
    if status.st_uid not in (user, 0):
        return f"belongs to uid {status.st_uid}, not to us"
    if status.st_mode & _OF_OTHERS:
        return f"is open to others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None
