"""SIGTERM asks the trainer to save at the next step boundary and end.

Before the loop runs there is nothing to save: the signal kills at once, as it does by default.
After the save the process kills itself with the same signal, so that its parent sees the exit
status that it expects. Repeated signals change nothing: a save that has begun is completed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import NoReturn

from supervisor.protocol import environment


class Termination:
    """Remembers the first request to stop."""

    def __init__(
        self,
        preempted: Callable[[], bool] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Handle SIGTERM from now on, and SIGINT too unless a supervisor runs us.

        With `preempted`, somebody else handles SIGTERM, and `preempted` returns whether it came.
        """
        self._signal: int | None = None
        self._preempted = preempted
        if preempted is None:
            signal.signal(signal.SIGTERM, self._note)
        if environment.JOB not in environ:
            signal.signal(signal.SIGINT, self._note)

    def requested(self) -> bool:
        """Whether this process was asked to stop."""
        if self._preempted is not None and self._preempted():
            self._signal = self._signal or signal.SIGTERM
        return self._signal is not None

    def die(self) -> NoReturn:
        """End this process by the signal that asked it to stop."""
        assert self._signal is not None
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(self._signal, signal.SIG_DFL)
        os.kill(os.getpid(), self._signal)
        raise AssertionError("survived a signal with its default action")

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = self._signal or number


def ignore_interrupts_of_supervised(environ: Mapping[str, str] = os.environ) -> None:
    """Ignore Ctrl-C if a supervisor runs us: the terminal sends it to every process, and the
    supervisor answers it."""
    if environment.JOB in environ:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
