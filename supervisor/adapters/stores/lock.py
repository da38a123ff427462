"""One supervisor per model_dir on a host: `flock` on a file in it, and who holds it.

The lock is on `.supervisor.lock`, which is opened for writing: a user who may only read model_dir
cannot open it, and so cannot lock the job out. The file is never removed, so all processes that
open it lock the same file.

Older supervisors lock the directory itself instead. We take that lock too, which keeps out an older
supervisor that starts later; and if an older one holds it, we stop. But any reader of model_dir can
hold it as well: `_held_by` tells the two apart, and a reader's lock is ignored with a warning. If
the holder cannot be seen, `.supervisor.json` decides: if a supervisor with a lock file wrote it, no
older supervisor is running, and we wait only for dying processes of the last one.

`.supervisor.json` names the holder, for people and for the workers: without a lease it has the
token of the owner (`protocol.environment.OWNER_FILE`), and an epoch that grows with every owner.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from supervisor.host.identity import Identity
from supervisor.ports import Storage
from supervisor.protocol import reading, removal
from supervisor.protocol.messages import printable

LOCK = ".supervisor.lock"
OWNER = ".supervisor.json"
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_SINCE_LOCK_FILE = ("token", "epoch")
"""Keys that only supervisors with a lock file write into `.supervisor.json`."""
_PAUSE = 0.01
_MAX_SINCE = 40


class LockHeldError(Exception):
    """Another supervisor owns the model_dir; the text says who, since when, and what to do."""


class LockUnsupportedError(Exception):
    """The folder's file system does not support `flock`."""


class DirectoryLock:
    """The lock on a model_dir; held until `release` or the end of the process."""

    def __init__(
        self,
        directory: Path,
        patience: float = 10.0,
        shown: str = "",
        remedy: str = "use another model_dir",
    ) -> None:
        """Take the lock. `shown` is what people know the directory by; "": its path. `remedy` is
        what they can do besides stopping the holder.

        A process between fork and exec inherits the lock's descriptors. So if the supervisor that
        holds the lock is certainly dead, only such a process can still hold it, and it is dying: we
        wait for its end, at most `patience` seconds.

        Raises:
            LockHeldError: another supervisor has it.
            LockUnsupportedError: the file system has no locks.
            OSError: it cannot be opened; the text says what to do.
        """
        self._directory = directory
        self._shown = shown or str(directory)
        self._remedy = remedy
        self._written = b""
        self._epoch = 0
        self._stamp: tuple[int, ...] = ()
        self.ignored: str | None = None
        """A warning about a reader's lock on the directory, which we ignore; None: no such lock."""
        with contextlib.ExitStack() as undo:
            self._lock = _opened(directory / LOCK)
            undo.callback(os.close, self._lock)
            self._place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            undo.callback(os.close, self._place)
            self._take(patience)
            undo.pop_all()

    def _take(self, patience: float) -> None:
        end = time.monotonic() + patience
        while not _locked(self._lock):
            if time.monotonic() >= end or not _is_dead(_record(self._directory)):
                who = _who(self._directory, self._remedy)
                raise LockHeldError(f"{self._shown} is owned by {who}")
            time.sleep(_PAUSE)
        while not _locked(self._place):
            record, status = _record(self._directory), os.fstat(self._place)
            holders, dying = _holders(status), _is_dead(record)
            late, held_by = time.monotonic() >= end, _held_by(holders, record, status)
            if held_by is _Holder.READER or (late and held_by is _Holder.LEFTOVER):
                if not _locked(self._place):  # it may have been free meanwhile
                    self.ignored = _told_of_readers(self._directory, holders)
                return
            if held_by is _Holder.OWNER and (late or not dying):
                who = _who(self._directory, self._remedy, holders or ())
                raise LockHeldError(f"{self._shown} is owned by {who}")
            time.sleep(_PAUSE)

    def claim(self, files: Storage, wall: datetime, token: str | None) -> Path | None:
        """Write into `.supervisor.json`, in `files`, that we hold the lock since `wall`. If a file
        that no supervisor wrote has that name, it is renamed; returns its new path, or None.

        `token` is the owner's token that workers are compared with; None: the lease has it.

        Raises:
            OSError: it cannot be written. The lock holds without it.
        """
        owner_file, foreign = self._directory / OWNER, None
        with contextlib.suppress(FileNotFoundError):
            if is_foreign_owner_file(owner_file):
                foreign = removal.rename_foreign(owner_file)
        before = _record(self._directory).get("epoch")
        self._epoch = (before if isinstance(before, int) else 0) + 1
        owner = Identity.of_this_process().to_json()
        told = {"token": token, "epoch": self._epoch, **owner, "since": wall.isoformat()}
        self._written = json.dumps(told).encode()
        self._write(files)
        return foreign

    def restore(self, files: Storage) -> bool:
        """Write `.supervisor.json` again if it is not what we wrote; returns whether it was not.

        Raises:
            OSError: it cannot be written now.
        """
        if self._stamp and _stamp(self._directory / OWNER) == self._stamp:
            return False
        self._write(files)
        return True

    def _write(self, files: Storage) -> None:
        files.replace(OWNER, self._written)
        self._stamp = _stamp(self._directory / OWNER)

    def holds(self) -> bool:
        """True if the directory and the lock in it are still those that we locked."""
        try:
            place, lock = self._directory.stat(), (self._directory / LOCK).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # the check failed: assume that we still own it
            return True
        return os.path.samestat(place, os.fstat(self._place)) and os.path.samestat(
            lock, os.fstat(self._lock)
        )

    def release(self, files: Storage) -> None:
        """Release the lock. The epoch stays in the file, for the next owner."""
        with contextlib.suppress(OSError):
            told = reading.read(self._directory / OWNER)
            if told and told == self._written:  # another host's supervisor may have written it
                files.replace(OWNER, json.dumps({"token": None, "epoch": self._epoch}).encode())
        os.close(self._place)
        os.close(self._lock)


@dataclass(frozen=True, slots=True)
class LockOwner:
    """A supervisor that says to own a model_dir."""

    identity: Identity
    since: str

    def __str__(self) -> str:
        return f"{self.identity}, since {self.since}"


def living_owner(directory: Path) -> LockOwner | None:
    """Returns the supervisor that owns `directory`, as far as can be told without trying the lock;
    None: none is known."""
    owner = _owner(_record(directory))
    return None if owner is None or owner.identity.is_dead else owner


# --- the lock ------------------------------------------------------------------------------------


def _opened(path: Path) -> int:
    try:
        descriptor = os.open(path, _LOCK_FLAGS, 0o600)
    except PermissionError as error:
        raise OSError(error.errno, _belongs_to_another(path), str(path)) from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(error.errno, f"{path} is a link: remove it", str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path} is not a regular file: remove it", str(path))
    return descriptor


def _belongs_to_another(path: Path) -> str:
    try:
        of = f" belongs to uid {path.lstat().st_uid}, and"
    except OSError:
        of = ""
    remedy = "run as the user who owns it, or remove it once that user's supervisor has ended"
    return f"{path}{of} may not be opened by uid {os.geteuid()}: {remedy}"


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        raise LockUnsupportedError from error
    return True


# --- who holds the lock of the directory ----------------------------------------------------------


def _holders(status: os.stat_result) -> dict[int, int] | None:
    """Return the processes that took a `flock` on the file of `status`, as pid to user id; None:
    /proc does not tell.

    Processes of another pid namespace are not seen, nor one that has ended since: then a process
    that inherited its descriptor holds the lock.
    """
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    found: dict[str, list[int]] = {}
    for fields in (line.split() for line in lines):
        if len(fields) < 6 or fields[1] != "FLOCK":
            continue
        place, _, inode = fields[5].rpartition(":")
        if inode == str(status.st_ino):
            found.setdefault(place, []).append(int(fields[4]))
    # Btrfs shows another device number here than `stat` does.
    pids = found.get(device) or [pid for pids in found.values() for pid in pids]
    return {pid: user for pid in pids if (user := _user(pid)) is not None}


class _Holder(Enum):
    """Who may have locked the directory."""

    READER = 1
    """A process that is no supervisor."""
    LEFTOVER = 2
    """A process that the last supervisor was starting when it was killed; or a reader."""
    OWNER = 3
    """A supervisor of an older version, which owns it."""


def _held_by(
    holders: dict[int, int] | None, record: dict[str, Any], status: os.stat_result
) -> _Holder:
    """Decide who may have locked the directory of `status`, whose lock file we have locked.

    An older supervisor is the process that `record` names, or any process that could write to
    model_dir: one of root, of our user, or of the directory's owner.
    """
    named, here = _identity(record), Identity.of_this_process()
    if holders:
        writers = {0, os.geteuid(), status.st_uid}
        alive = named is not None and not named.is_dead
        may_own = any(
            user in writers or (alive and named is not None and named.pid == pid)
            for pid, user in holders.items()
        )
        return _Holder.OWNER if may_own else _Holder.READER
    unseen = _Holder.OWNER if record.keys().isdisjoint(_SINCE_LOCK_FILE) else _Holder.LEFTOVER
    if holders is None:
        return unseen
    if named is None or named.boot != here.boot:
        return _Holder.READER
    if named.is_dead:
        return _Holder.LEFTOVER
    return _Holder.READER if named.namespace == here.namespace else unseen


def _user(pid: int) -> int | None:
    """Return the real user id of a process; None: it has ended. (The owner of /proc/PID will not
    do: it is root for many processes.)"""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    told = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    return None if told["State"][0] in "ZX" else int(told["Uid"][0])


def _told_of_readers(directory: Path, holders: dict[int, int] | None) -> str:
    whose = ", ".join(f"pid {pid} of uid {user}" for pid, user in (holders or {}).items())
    who = whose or "a process that cannot be seen from here"
    return (
        f"{directory} is locked by {who}, which is no supervisor: ignored; it keeps out nobody but "
        "supervisors older than the lock file"
    )


# --- who says to hold it --------------------------------------------------------------------------


def _record(directory: Path) -> dict[str, Any]:
    """Read `.supervisor.json`; empty if it is missing or damaged: then the lock alone decides."""
    try:
        return reading.read_object(directory / OWNER)
    except (OSError, ValueError):
        return {}


def is_foreign_owner_file(path: Path) -> bool:
    """True if `path` is a file that no supervisor can have written.

    Raises:
        OSError: there is no such file, or it cannot be read now.
    """
    try:
        told = reading.read_object(path)
    except (reading.UnreadableError, PermissionError):
        return True
    is_left = type(told.get("epoch")) is int and "token" in told
    return not is_left and _identity(told) is None


def _identity(record: dict[str, Any]) -> Identity | None:
    try:
        return Identity.from_json(record)
    except (KeyError, TypeError, ValueError):
        return None


def _is_dead(record: dict[str, Any]) -> bool:
    identity = _identity(record)
    return identity is not None and identity.is_dead


def _owner(record: dict[str, Any]) -> LockOwner | None:
    """Returns who says to hold the lock, dead or alive; None: nobody does."""
    identity = _identity(record)
    since = printable(str(record.get("since"))[:_MAX_SINCE])
    return LockOwner(identity, since) if identity is not None else None


def _who(directory: Path, remedy: str, holders: Collection[int] = ()) -> str:
    record = _record(directory)
    identity, who = _identity(record), _owner(record)
    if identity is None or identity.is_dead:  # the holder has not written its name yet
        pids = f" (pid {', '.join(map(str, holders))})" if holders else ""
        return f"another supervisor{pids}; stop it first, or {remedy}"
    if not identity.is_seen_from_here:
        how = "stop it there first (it is in another container or on another host)"
    else:
        how = f"stop it first (kill -TERM {identity.pid})"
    return f"{who}; {how}, or {remedy}"


def _stamp(path: Path) -> tuple[int, ...]:
    """Return a value that changes whenever the file does; empty if there is no file."""
    try:
        status = path.lstat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
