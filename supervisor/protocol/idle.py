"""Processes that get ready ahead of time run only when nobody else wants the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread


def become() -> bool:
    """Run only when nobody else wants to; False where a process could not come back from that."""
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
