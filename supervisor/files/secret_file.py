"""Reads a secret from a file that a person has named, if no other user can read or write the file.

A secret that is mounted into a container is a link, and so is its folder. So links are followed,
and the opened file is checked: it must be a regular file of this user or of root, without any
permissions for others. Its group may have none either, with one exception: a file of root may be
readable by a group of this process. Kubernetes mounts a secret like that for a pod with an
`fsGroup`, and root's choice of a group is no accident, as the group of a user's own file may be.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from supervisor.protocol.reading import UnreadableError, open_file, read_open_file

_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ROOT = 0


def read(path: Path, limit: int) -> bytes:
    """Return all of the file `path`, of at most `limit` bytes.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        UnreadableError: it is not a regular file, another user can read or write it, or it is
            larger.
        OSError: it cannot be read now.
    """
    with open_file(path, linked=True) as file:
        status, user = os.fstat(file.fileno()), os.geteuid()
        if (why := why_exposed(status, user, {os.getegid(), *os.getgroups()})) is not None:
            raise UnreadableError(path, why, _remedy(status, user, path))
        return read_open_file(file, path, limit)


def why_exposed(status: os.stat_result, user: int, groups: Collection[int]) -> str | None:
    """Return why somebody else may know or change the content of a file of that `status`.

    None: only `user` and root can, or the file is root's and one of our `groups` may read it.
    """
    if status.st_uid not in (user, _ROOT):
        return f"belongs to uid {status.st_uid}, not to us"
    open_to = status.st_mode & _OF_OTHERS
    if status.st_uid == _ROOT and status.st_gid in groups:
        open_to &= ~stat.S_IRGRP
    return f"is open to others (mode {stat.S_IMODE(status.st_mode):04o})" if open_to else None


def _remedy(status: os.stat_result, user: int, path: Path) -> str:
    if status.st_uid == user:
        return f"chown it, or chmod 600 {path}"
    return f"chown it to uid {user}, or to root and a group of that user, with chmod 640 {path}"
