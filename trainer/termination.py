"""SIGTERM asks the trainer to save at the next step boundary and go.

Before the loop runs there is nothing to save and the signal kills at once, as it does by default.
The process dies of the signal in the end, so that its parent sees what it asked for. Repeats change
nothing: a save that has begun is finished.
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
        notice: Callable[[], bool] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Handle SIGTERM from here on, and SIGINT where no supervisor forwards it.

        Where somebody else handles SIGTERM and answers `notice` for it, leave it to them.
        """
        self._signal: int | None = None
        self._notice = notice
        if notice is None:
            signal.signal(signal.SIGTERM, self._note)
        if environment.JOB not in environ:
            signal.signal(signal.SIGINT, self._note)

    def requested(self) -> bool:
        """Whether this process is asked to stop."""
        if self._notice is not None and self._notice():
            self._signal = self._signal or signal.SIGTERM
        return self._signal is not None

    def die(self) -> NoReturn:
        """Die of the signal that asked."""
        assert self._signal is not None
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(self._signal, signal.SIG_DFL)
        os.kill(os.getpid(), self._signal)
        raise AssertionError("survived a signal with its default action")

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = self._signal or number


def ignore_interrupts_of_supervised(environ: Mapping[str, str] = os.environ) -> None:
    """Leave Ctrl-C to the supervisor: the terminal sends it to every process, ours included."""
    if environment.JOB in environ:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
