"""Examines the file by which libtpu lets only one process use all TPU chips of a host.

libtpu creates the file with mode 0600, and locks it as long as its process lives. SIGKILL ends the
lock and leaves the file. The same user can lock it again. Another user cannot open it, and libtpu
says that the TPU is "already in use by another process probably owned by another user". Root gets
this error too if the kernel forbids `open` with O_CREAT on another user's file in /tmp
(`protected_regular` in Linux, Documentation/admin-guide/sysctl/fs.rst).

Sources: openxla xla/stream_executor/tpu/tpu_initialize_util.cc, whose newest version then uses a
file of the user's own; libtpu 0.0.42.1.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

LOCK = Path("/tmp/libtpu_lockfile")
_PROTECTED = Path("/proc/sys/fs/protected_regular")
_LOCKS = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class UnusableLock:
    """A file in the place of the lock file that our workers cannot open or lock."""

    path: Path
    uid: int
    mode: int
    pids: tuple[int, ...]
    """The processes that have locked it, as far as we can see them."""
    kind: str = "file"
    """The kind of file, for people; libtpu can only lock a regular file."""


def unusable_lock(path: Path = LOCK, *, protected: bool | None = None) -> UnusableLock | None:
    """Returns what our workers cannot lock at `path`: another user's file, or no regular file.
    None: there is no file, or we can open it.

    `protected` replaces the kernel's setting `protected_regular`: True if it is on.

    Raises:
        OSError: the file cannot be examined.
    """
    try:
        found, folder = path.lstat(), path.parent.stat()
    except FileNotFoundError:
        return None
    kind, user = _kind(path, found), os.geteuid()
    if kind is not None:
        return UnusableLock(path, found.st_uid, stat.S_IMODE(found.st_mode), (), kind)
    if found.st_uid == user:
        return None
    shared = bool(folder.st_mode & stat.S_ISVTX) and found.st_uid != folder.st_uid
    protects = _protects() if protected is None else protected
    may_open = os.access(path, os.R_OK | os.W_OK, effective_ids=True)
    if may_open and not (shared and protects):
        return None
    return UnusableLock(path, found.st_uid, stat.S_IMODE(found.st_mode), _locking(found))


def _kind(path: Path, found: os.stat_result) -> str | None:
    """Returns the kind of file in words; None: a regular file, or our own link to one."""
    if stat.S_ISREG(found.st_mode):
        return None
    if stat.S_ISDIR(found.st_mode):
        return "directory"
    if not stat.S_ISLNK(found.st_mode):
        return "special file"
    if found.st_uid == os.geteuid() and path.is_file():
        return None
    return f"symbolic link to {str(path.readlink())!r}"


def _protects() -> bool:
    try:
        return _PROTECTED.read_text().strip() != "0"
    except OSError:
        return False


def _locking(file: os.stat_result) -> tuple[int, ...]:
    """Returns the pids of the processes that have locked the file with `lockf`. Processes outside
    our pid namespace are not seen."""
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        lines = [line.split() for line in _LOCKS.read_text().splitlines()]
    except OSError:
        return ()
    held = [fields for fields in lines if fields[1:2] == ["POSIX"] and fields[5:6] == [place]]
    return tuple(sorted({int(fields[4]) for fields in held}))
