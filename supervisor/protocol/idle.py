"""Processes that get ready ahead of time run only when nobody else wants the CPU.

A scheduling policy counts among the processes of one group. Where the kernel makes a group of each
session (autogroup, see sched(7)) all groups get the same share, whatever is in them: a process with
a session of its own yields to others only if the share of its session is small too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Thread

_LEAST = b"19"
"""The nice value of a session: 1.5% of what another one gets."""


def make(pid: int) -> None:
    """Have the process `pid`, which leads a session, run only when nobody else wants to, for good.

    To be repeated: the kernel takes only ten such wishes a second from users without privileges.
    """
    with suppress(ProcessLookupError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):  # it has ended, it is too soon, or this kernel makes no such groups
        descriptor = os.open(f"/proc/{pid}/autogroup", os.O_WRONLY)
        try:
            os.write(descriptor, _LEAST)
        finally:
            os.close(descriptor)


def become() -> bool:
    """Run behind all others of this session; False where a process could not come back from that.

    The session keeps its share: this is for what is to be ready soon.
    """
    possible = []

    def go_and_come_back() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        except OSError:
            return
        possible.append(True)

    thread = Thread(target=go_and_come_back)  # a policy is a thread's own, and so is the risk
    thread.start()
    thread.join()
    if possible:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    return bool(possible)


def end() -> None:
    """All threads of the process: those that the imports started were born idle."""
    for task in Path("/proc/self/task").iterdir():
        try:
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))
        except ProcessLookupError:  # it has ended meanwhile
            continue
