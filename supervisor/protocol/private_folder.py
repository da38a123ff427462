"""Folders that only this user can write to, so that code in them is safe to run."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def make(folder: Path) -> None:
    """Make `folder`, or check that only this user can write to it.

    Raises:
        OSError: others can write to it, it is no folder of this user, or it cannot be made.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check(folder)


def check(folder: Path) -> None:
    """Check that `folder` is a folder that only this user can write to, and no link.

    Raises:
        FileNotFoundError: there is no such folder.
        OSError: others can write to it, or it is no folder of this user.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or not only_we_write(status):
        raise PermissionError(
            f"{folder} must be a directory of this user that nobody else can write to: remove "
            "it, and it is made so"
        )


def only_we_write(status: os.stat_result) -> bool:
    """True if a file with this `status` belongs to this user, and nobody else can write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
