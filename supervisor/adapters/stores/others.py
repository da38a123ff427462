"""Who else may change model_dir: where root runs a job, that user can have root run anything.

What is looked at is the directory itself, each directory above it (whoever may write one of them
can put another model_dir in its place), and the lock file in it. Access control lists show in the
bits of the group. Not seen are other names of the directory (bind mounts, the server of a network
file system), and what files deeper in it allow.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def may_change(directory: Path, lock: str, *, user: int) -> list[str]:
    """What lets others than `user` and root change `directory` or hold the file `lock` in it.

    What cannot be looked at is named too: nobody knows who may change it. Only root is told of the
    directories: for others it is the usual thing to share them.
    """
    found = list(_of_lock(directory / lock, user))
    if user == 0:
        real = directory.resolve()
        for each in (real, *real.parents):
            found += _of_directory(each, is_above=each != real)
    return found


def _of_directory(path: Path, *, is_above: bool) -> Iterator[str]:
    try:
        status = path.stat()
    except OSError as error:
        yield _unseen(path, error)
        return
    if status.st_uid != 0:
        yield f"{path} belongs to uid {status.st_uid}"
    if is_above and status.st_mode & stat.S_ISVTX:
        return  # what is in it can be renamed only by its owner
    if status.st_mode & stat.S_IWOTH:
        yield f"{path} can be written by everyone"
    elif status.st_mode & stat.S_IWGRP and status.st_gid != 0:
        yield f"{path} can be written by group {status.st_gid}"


def _of_lock(path: Path, user: int) -> Iterator[str]:
    try:
        status = path.lstat()
    except FileNotFoundError:  # this file system knows no `flock`
        return
    except OSError as error:
        yield _unseen(path, error)
        return
    if status.st_uid not in (0, user):
        yield f"{path} belongs to uid {status.st_uid}"
    if status.st_mode & _OTHERS:
        yield f"{path} can be opened by others (mode {stat.S_IMODE(status.st_mode):o}, not 600)"


def _unseen(path: Path, error: OSError) -> str:
    return f"{path} cannot be looked at ({error.strerror})"
