"""One supervisor per model_dir on a host: `flock` on the directory itself, and who holds it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from datetime import datetime
from pathlib import Path

OWNER = ".supervisor.json"


class LockHeldError(Exception):
    """Another supervisor owns the model_dir; the text says who, since when, and what to do."""


class DirectoryLock:
    """The lock on a directory; held until `release` or the end of the process."""

    def __init__(self, directory: Path, wall: datetime) -> None:
        """Take the lock.

        Raises:
            LockHeldError: somebody else has it.
        """
        self._owner = directory / OWNER
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise LockHeldError(_who(directory, self._owner)) from None
        owner = {"pid": os.getpid(), "host": os.uname().nodename, "since": wall.isoformat()}
        with contextlib.suppress(OSError):  # a full disk: the lock holds without it
            self._owner.write_text(json.dumps(owner), encoding="utf-8")

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
        with contextlib.suppress(OSError):  # it may be read-only by now
            self._owner.unlink(missing_ok=True)
        os.close(self._descriptor)


def _who(directory: Path, owner: Path) -> str:
    try:
        told = json.loads(owner.read_bytes())
        who = f"supervisor {told['pid']} on {told['host']}, since {told['since']}"
        remedy = f"stop it first (kill -TERM {told['pid']}), or use another model_dir"
    except (OSError, ValueError, KeyError, TypeError):
        who, remedy = "another supervisor", "stop it first, or use another model_dir"
    return f"{directory} is owned by {who}; {remedy}"
