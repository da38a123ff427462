"""Processes that get ready ahead of time take a small part of the CPU while others want it.

Not the policy for idle times (SCHED_IDLE): beside a program that is always busy, it would let a
standby wait for minutes for imports that take seconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

_NICER = 10
"""Beside one busy thread on the same core that leaves a tenth of it; of an idle core, all."""


def enter() -> int | None:
    """Have this process yield to others; the nice value that it had, for `leave`. None: it could
    not come back from that, and goes on as it was."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    possible = []

    def go_and_come_back() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, before + _NICER)
            os.setpriority(os.PRIO_PROCESS, 0, before)
        except OSError:
            return
        possible.append(True)

    thread = Thread(target=go_and_come_back)  # it is a thread's own on Linux, and so is the risk
    thread.start()
    thread.join()
    if not possible:
        return None
    os.setpriority(os.PRIO_PROCESS, 0, before + _NICER)
    return before


def leave(before: int) -> None:
    """Have all threads of the process run as it did before `enter`: those that the imports started
    inherited the other value."""
    for task in Path("/proc/self/task").iterdir():
        try:
            os.setpriority(os.PRIO_PROCESS, int(task.name), before)
        except ProcessLookupError:  # it has ended meanwhile
            continue
