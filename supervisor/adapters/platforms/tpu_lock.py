"""The file by which libtpu lets only one process have all TPU chips of a host.

libtpu makes it with mode 0600 and locks it for as long as its process lives. SIGKILL ends the lock
and leaves the file. That does no harm to the same user; another one cannot open it, and is told
that the TPU is "already in use by another process probably owned by another user". So is root,
where the kernel protects files in /tmp from being opened as if they were made. (openxla
xla/stream_executor/tpu/tpu_initialize_util.cc, whose newest version takes a file of the user's own
then; libtpu 0.0.42.1; `protected_regular` in Linux, Documentation/admin-guide/sysctl/fs.rst.)
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
    """What our workers cannot open or lock in the place of the lock file."""

    path: Path
    uid: int
    mode: int
    pids: tuple[int, ...]
    """Who has it locked, as far as that can be seen from here."""
    kind: str = "file"
    """What it is: only a regular file can be locked."""


def unusable_lock(path: Path = LOCK, *, protected: bool | None = None) -> UnusableLock | None:
    """What is in the way there: another user's file, or no file; None: nothing is, or a file that
    we can open. `protected` says whether the kernel protects such files, instead of the kernel.

    Raises:
        OSError: it cannot be looked at.
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
    """What it is; None: a regular file, or our own link to one."""
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
    """The processes that have locked the file with `lockf`; those of another pid namespace are not
    seen."""
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        lines = [line.split() for line in _LOCKS.read_text().splitlines()]
    except OSError:
        return ()
    held = [fields for fields in lines if fields[1:2] == ["POSIX"] and fields[5:6] == [place]]
    return tuple(sorted({int(fields[4]) for fields in held}))
