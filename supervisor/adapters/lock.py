"""One supervisor per model_dir on a host: `flock` on the directory itself, and who holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from datetime import datetime
from pathlib import Path

from supervisor.host.identity import Identity

OWNER = ".supervisor.json"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_PAUSE = 0.01


class LockHeldError(Exception):
    """Another supervisor owns the model_dir; the text says who, since when, and what to do."""


class LockUnsupportedError(Exception):
    """The folder's file system knows no `flock`."""


class DirectoryLock:
    """The lock on a directory; held until `release` or the end of the process."""

    def __init__(self, directory: Path, wall: datetime, patience: float = 10.0) -> None:
        """Take the lock.

        Its descriptor is inherited by a process between fork and exec. Where the supervisor that
        holds the lock is seen to be dead, that is all that is left of it, and dying: it is waited
        for, at most `patience` seconds.

        Raises:
            LockHeldError: somebody else has it.
            LockUnsupportedError: nobody can have it.
        """
        self._owner = directory / OWNER
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        end = time.monotonic() + patience
        while not self._try():
            if time.monotonic() >= end or not _is_dead(self._owner):
                os.close(self._descriptor)
                raise LockHeldError(_who(directory, self._owner))
            time.sleep(_PAUSE)
        owner = {**Identity.of_this_process().to_json(), "since": wall.isoformat()}
        self._written = json.dumps(owner).encode()
        with contextlib.suppress(OSError):  # a full disk: the lock holds without it
            self._owner.write_bytes(self._written)

    def holds(self, directory: Path) -> bool:
        """Whether `directory` is still the one that was locked: not deleted, not another one."""
        try:
            there = directory.stat()
        except FileNotFoundError:
            return False
        except OSError:  # who cannot tell goes on
            return True
        return os.path.samestat(there, os.fstat(self._descriptor))

    def release(self) -> None:
        """Give the lock back."""
        with contextlib.suppress(OSError):
            if self._owner.read_bytes() == self._written:  # not that of another host's supervisor
                self._owner.unlink()
        os.close(self._descriptor)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            os.close(self._descriptor)
            raise LockUnsupportedError from error
        return True


def living_owner(directory: Path) -> str | None:
    """The supervisor that owns `directory`, as far as can be told without trying the lock."""
    owner = directory / OWNER
    return _told(owner) if owner.exists() and not _is_dead(owner) else None


def _is_dead(owner: Path) -> bool:
    try:
        return Identity.from_json(json.loads(owner.read_bytes())).is_dead
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _told(owner: Path) -> str | None:
    try:
        told = json.loads(owner.read_bytes())
        return f"supervisor {told['pid']} on {told['host']}, since {told['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _who(directory: Path, owner: Path) -> str:
    who = _told(owner)
    if who is None:
        text = "another supervisor; stop it first, or use another model_dir"
        return f"{directory} is owned by {text}"
    pid = who.split()[1]
    remedy = f"stop it first (kill -TERM {pid}), or use another model_dir"
    return f"{directory} is owned by {who}; {remedy}"
