"""Processes that get ready ahead of time run only when nobody else wants the CPU.

A scheduling policy counts among the processes of one group. Where the kernel makes a group of each
session (autogroup, see sched(7)) and all groups get the same share, the group has to step back too.
Our processes have sessions of their own; a process that has not, leaves its session alone.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

_LEAST, _USUAL = 19, 0
"""Nice values of a group: 1.5% of what another group gets, and as much."""
_PATIENCE = 1.0
_PAUSE = 0.02


def make(pid: int) -> None:
    """Have the process `pid`, which leads a session, run only when nobody else wants to: for good.
    To be repeated: the kernel refuses to regroup at times."""
    with suppress(ProcessLookupError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        _set_share(pid, _LEAST)


def become() -> None:
    """Run only when nobody else wants to; as far as this process can come back from that."""
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
    _insist(_LEAST)


def end() -> None:
    """Be like others again: all threads, as those that were started meanwhile were born idle."""
    _insist(_USUAL)
    if os.sched_getscheduler(0) == os.SCHED_IDLE:
        for task in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))


def _insist(nice: int) -> None:
    """Set the share of this process's group. Who has no privileges may do so ten times a second,
    all of them together."""
    until = time.monotonic() + _PATIENCE
    while os.getsid(0) == os.getpid():
        try:
            _set_share(os.getpid(), nice)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(_PAUSE)
                continue
        except OSError:  # this kernel makes no such groups
            pass
        return


def _set_share(pid: int, nice: int) -> None:
    descriptor = os.open(f"/proc/{pid}/autogroup", os.O_WRONLY)
    try:
        os.write(descriptor, str(nice).encode())
    finally:
        os.close(descriptor)
