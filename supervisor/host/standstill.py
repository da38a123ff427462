"""Has the processes of a job stand still (SIGSTOP) for as long as another may own the job."""

from __future__ import annotations

import signal
import time

from supervisor.host import tree

_LOOK_AGAIN = 0.002


class Standstill:
    """The processes that were stopped, and are to go on."""

    def __init__(self) -> None:
        self._stopped: list[tuple[int, tree.Stat]] = []

    def begin(self, root: int, spared: set[int], patience: float) -> bool:
        """SIGSTOP what descends from `root` but for the sessions `spared`; whether none of it runs
        any more.

        One that waits in the kernel, for a disk as a rule, stops when it is done there: it is not
        waited for beyond `patience` seconds.
        """
        end = time.monotonic() + patience
        calm = 0
        while calm < 2:  # the kernel's list may lack one while another one is waited for
            sent, running = tree.stop(root, spared)
            self._stopped += sent
            calm = 0 if running else calm + 1
            if running and time.monotonic() > end:
                return False
            time.sleep(_LOOK_AGAIN if running else 0)
        return True

    def end(self) -> None:
        """SIGCONT to those that were stopped."""
        stopped, self._stopped = self._stopped, []
        for pid, seen in stopped:
            tree.send(pid, seen, signal.SIGCONT)
