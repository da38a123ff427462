"""Lets a process in the background have a tenth of a core, more only while nobody else wants it.

The lowest priority is no such thing: beside a process that is always busy it gets nothing for
minutes, and a thread that runs, however humble, is in the way of those that wake up there a moment
later. So it runs like any other, in bursts, and after each burst in which it had to wait for the
CPU it rests until a tenth of a core is all that it has had.
"""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGCONT, SIGSTOP

from supervisor.engines.handles import Process
from supervisor.engines.host_port import MainLoop
from supervisor.ports import Clock

_SHARE = 0.1
"""Of one core, while others want the CPU."""
_BURST = 0.1
_CONTENDED = 0.1
"""How long it waits for each second that it runs if others want the CPU. Alone it hardly waits."""


def rest_after(wall: float, ran: float, waited: float) -> float:
    """Seconds to rest after a burst that took `wall` seconds, in which all threads together ran and
    waited for the CPU so long. The burst and the rest together hold its share, if that much was
    had; it rests for nothing if nobody else wants the CPU."""
    if waited < _CONTENDED * ran:
        return 0.0
    return max(0.0, ran / _SHARE - wall)


class Throttle:
    """Stops and continues one process, until `end`."""

    def __init__(
        self,
        reactor: MainLoop,
        clock: Clock,
        process: Process,
        measured: Callable[[int], tuple[int, int]],
    ) -> None:
        """The process has just been started, and may run; `measured` tells of a pid for how long
        it has run, and has waited to run."""
        self.ran = 0.0
        """Seconds for which it was let run."""
        self._reactor = reactor
        self._clock = clock
        self._process = process
        self._measured = measured
        self._turn = 0
        """Counts what is begun: a timer that was set before is of no concern."""
        self._began = 0.0
        self._before = (0, 0)
        self._burst()

    def hold(self) -> None:
        """Let it not run at all until `release`."""
        self._turn += 1
        self._process.signal(SIGSTOP)

    def release(self) -> None:
        """Let it run again, in bursts."""
        self._turn += 1
        self._continue()

    def end(self) -> None:
        """Leave the process alone: it has ended, or is about to."""
        self._turn += 1

    def _continue(self) -> None:
        self._process.signal(SIGCONT)
        self._burst()

    def _burst(self) -> None:
        self._began = self._clock.now()
        self._before = self._measured(self._process.pid)
        self._after(_BURST, self._rest)

    def _rest(self) -> None:
        wall = self._clock.now() - self._began
        self.ran += wall
        rest = rest_after(wall, *self._ran_and_waited(wall))
        if rest > 0.0:
            self._process.signal(SIGSTOP)
            self._after(rest, self._continue)
        else:
            self._burst()

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        turn = self._turn

        def due() -> None:
            if self._turn == turn:
                then()

        self._reactor.call_later(seconds, due)

    def _ran_and_waited(self, wall: float) -> tuple[float, float]:
        """Seconds, in this burst."""
        now = self._measured(self._process.pid)
        if now == (0, 0):  # a kernel that does not count: perhaps it is in the way all the time
            return wall, wall
        ran, waited = (
            max(0, after - before) / 1e9 for after, before in zip(now, self._before, strict=True)
        )
        return ran, waited
