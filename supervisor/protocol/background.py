"""Lowers the CPU priority of processes that prepare something ahead of time, such as standbys.

We raise the nice value and do not use SCHED_IDLE: beside a program that is always busy, a standby
would then need minutes for imports that take seconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

_NICER = 10
"""Added to the nice value. The process then gets a tenth of a core beside one busy thread, and all
of an idle core."""


def lower_priority() -> int | None:
    """Raise the nice value of this process; returns the earlier value, for `restore_priority`.

    None: it is not raised, because the process may not lower it again.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    possible = []

    def go_and_come_back() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, before + _NICER)
            os.setpriority(os.PRIO_PROCESS, 0, before)
        except OSError:
            return
        possible.append(True)

    thread = Thread(target=go_and_come_back)  # Linux has a nice value for each thread: try it there
    thread.start()
    thread.join()
    if not possible:
        return None
    os.setpriority(os.PRIO_PROCESS, 0, before + _NICER)
    return before


def restore_priority(before: int) -> None:
    """Set all threads of the process back to the nice value `before`. Threads that imports have
    started inherited the raised value."""
    for task in Path("/proc/self/task").iterdir():
        try:
            os.setpriority(os.PRIO_PROCESS, int(task.name), before)
        except ProcessLookupError:  # it has ended meanwhile
            continue
