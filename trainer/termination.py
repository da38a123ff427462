"""SIGTERM asks the trainer to save at the next step boundary and end.

Before the loop runs there is nothing to save: the signal kills at once, as it does by default.
After the save the process kills itself with the same signal, so that its parent sees the exit
status that it expects. Repeated signals change nothing: a save that has begun is completed.

A function of the user that runs between two steps, and may take minutes, is broken off: the signal
raises `StopRequested` in it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import NoReturn

from supervisor.protocol import environment

Interrupts = Callable[[], AbstractContextManager[None]]
"""Makes the context in which a request to stop raises `StopRequested`."""


class StopRequested(BaseException):  # like KeyboardInterrupt: nobody is to handle it
    """This process is asked to stop, and breaks off what it does."""


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
        self._interrupts = False
        if preempted is None:
            signal.signal(signal.SIGTERM, self._note)
        if environment.JOB not in environ:
            signal.signal(signal.SIGINT, self._note)

    def requested(self) -> bool:
        """Whether this process was asked to stop."""
        if self._preempted is not None and self._preempted():
            self._signal = self._signal or signal.SIGTERM
        return self._signal is not None

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Context in which a request to stop raises `StopRequested`, once, wherever the main thread
        is. It is raised at the end of the block, too: what handles it there has a result that it
        would not have had. With `preempted` it is not: all processes must go on to the same
        step."""
        self._interrupts = self._preempted is None
        try:
            self._break_off()
            yield
            self._break_off()
        except Exception as error:
            if self._interrupts and self._signal is not None:
                raise StopRequested from error
            raise
        finally:
            self._interrupts = False

    def _break_off(self) -> None:
        if self._interrupts and self._signal is not None:
            raise StopRequested

    def die(self) -> NoReturn:
        """End this process by the signal that asked it to stop."""
        assert self._signal is not None
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(self._signal, signal.SIG_DFL)
        os.kill(os.getpid(), self._signal)
        raise AssertionError("survived a signal with its default action")

    def _note(self, number: int, _frame: FrameType | None) -> None:
        is_first = self._signal is None
        self._signal = self._signal or number
        if is_first and self._interrupts:
            raise StopRequested


def ignore_interrupts_of_supervised(environ: Mapping[str, str] = os.environ) -> None:
    """Ignore Ctrl-C if a supervisor runs us: the terminal sends it to every process, and the
    supervisor answers it."""
    if environment.JOB in environ:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
