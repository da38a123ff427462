"""Stops the processes of a job (SIGSTOP) while another supervisor may own the job."""

from __future__ import annotations

import signal
import time

from supervisor.host import tree

_STOP_PAUSE = 0.002


class Standstill:
    """The processes that were stopped and have to be continued."""

    def __init__(self) -> None:
        self._stopped: list[tuple[int, tree.Stat]] = []

    def begin(self, root: int, spared: set[int], patience: float) -> bool:
        """SIGSTOP all descendants of `root` outside the sessions `spared`; returns whether none of
        them runs any more.

        A process that waits in the kernel, as a rule for a disk, stops only when that is over: we
        wait at most `patience` seconds.
        """
        end = time.monotonic() + patience
        calm = 0
        while calm < 2:  # one scan may miss a child while another one is being reaped
            sent, running = tree.stop(root, spared)
            self._stopped += sent
            calm = 0 if running else calm + 1
            if running and time.monotonic() > end:
                return False
            time.sleep(_STOP_PAUSE if running else 0)
        return True

    def end(self) -> None:
        """Send SIGCONT to all that were stopped."""
        stopped, self._stopped = self._stopped, []
        for pid, seen in stopped:
            tree.send(pid, seen, signal.SIGCONT)
