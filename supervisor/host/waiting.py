"""Waits for the end of a process by its pidfd, so never of another process with the same pid. Uses
poll, because `select` takes no descriptor above 1023."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from signal import SIGKILL

from supervisor.host import tree

_KILL_TIMEOUT = 1.0


def has_ended(pidfd: int, patience: float | None = 0.0) -> bool:
    """Whether the process has ended, or does so within `patience` seconds; None: wait for it."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if patience is None else 1000 * patience))


def reaped(pid: int) -> int | None:
    """Reap a dead child, and return its exit code; None: it lives, or is no child of ours."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found == pid else None


def end_child(pid: int, started: int) -> None:
    """SIGKILL and reap a child, if `pid` still means the process that started at `started` (clock
    ticks since boot). Waits for a moment only: the process may be stuck in the kernel."""
    seen = tree.stat(pid)
    if seen is not None and seen.started == started and tree.send(pid, seen, SIGKILL):
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            has_ended(pidfd, _KILL_TIMEOUT)
            os.close(pidfd)
        reaped(pid)
