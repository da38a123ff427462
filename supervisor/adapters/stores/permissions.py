"""Finds who else may change model_dir: if root runs a job, they can make root run any program.

It looks at the directory, at the lock file in it, and at each directory above it: who may write one
of those can put another model_dir in its place. Access control lists show in the group's mode bits.
It does not see other names of the directory (bind mounts, the server of a network file system), nor
the permissions of files deeper in it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from supervisor.protocol.this_machine import real_path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def find_exposures(directory: Path, lock: str, *, user: int) -> list[str]:
    """Returns what lets others than `user` and root change `directory`, or lock the file `lock` in
    it; one sentence each.

    A path that cannot be examined is included: we cannot know who may change it. Directories are
    examined only if `user` is root: other users often share theirs.
    """
    found = list(_of_lock(directory / lock, user))
    if user == 0:
        real = real_path(directory)
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
        return  # sticky: only the owner of an entry can rename it
    if status.st_mode & stat.S_IWOTH:
        yield f"{path} can be written by everyone"
    elif status.st_mode & stat.S_IWGRP and status.st_gid != 0:
        yield f"{path} can be written by group {status.st_gid}"


def _of_lock(path: Path, user: int) -> Iterator[str]:
    try:
        status = path.lstat()
    except FileNotFoundError:  # no lock file: this file system has no `flock`
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
