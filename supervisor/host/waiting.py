"""The ends of processes: by descriptors of any number (`select` takes none above 1023), and of
nobody but the one that is meant."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from signal import SIGKILL

from supervisor.host import tree

_TO_DIE = 1.0


def has_ended(pidfd: int, patience: float | None = 0.0) -> bool:
    """Whether the process has ended, or does so within `patience` seconds; None: wait for it."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if patience is None else 1000 * patience))


def reaped(pid: int) -> int | None:
    """The exit code of a child that is dead; None: it is not, or nobody can wait for it."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found == pid else None


def end_child(pid: int, started: int) -> None:
    """Kill a child, unless the number is another process's by now, and wait for it: a moment, as it
    may wait in the kernel."""
    seen = tree.stat(pid)
    if seen is not None and seen.started == started and tree.send(pid, seen, SIGKILL):
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            has_ended(pidfd, _TO_DIE)
            os.close(pidfd)
        reaped(pid)
