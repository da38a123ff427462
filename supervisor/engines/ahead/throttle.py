"""Limits a background process to a tenth of a core while other processes want the CPU.

The lowest priority does not do that. Beside a busy process it gets no CPU for minutes, and a
running thread of any priority delays threads that wake up on its core. So the process runs at
normal priority in bursts. After a burst in which it had to wait for the CPU it is stopped until its
average is a tenth of a core.
"""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGCONT, SIGSTOP

from supervisor.engines.handles import Process
from supervisor.engines.host_port import MainLoop
from supervisor.ports import Clock

_SHARE = 0.1
"""The share of one core that the process may use while others want the CPU."""
_BURST = 0.1
"""Seconds that a burst lasts."""
_CONTENDED = 0.1
"""Least seconds of waiting per second of running that show that others want the CPU."""


def rest_after(wall: float, ran: float, waited: float) -> float:
    """Returns the seconds to rest after a burst of `wall` seconds.

    In the burst, all threads together ran for `ran` seconds and waited for the CPU for `waited`
    seconds. Returns 0 if nobody else wants the CPU, or if the burst used no more than its share.
    """
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
        """Begin the first burst: `process` has just been started.

        `measured` returns for a pid the nanoseconds for which it has run, and for which it has
        waited for a CPU; (0, 0): not known.
        """
        self.ran = 0.0
        """Seconds for which the process was allowed to run, without its rests."""
        self._reactor = reactor
        self._clock = clock
        self._process = process
        self._measured = measured
        self._turn = 0
        """Counts bursts and rests: a timer set for an earlier one does nothing."""
        self._began = 0.0
        self._before = (0, 0)
        self._burst()

    def pause(self) -> None:
        """Stop the process until `resume`."""
        self._turn += 1
        self._process.signal(SIGSTOP)

    def resume(self) -> None:
        """Let the process run again, in bursts."""
        self._turn += 1
        self._continue()

    def end(self) -> None:
        """Stop throttling: the process has ended, or is about to."""
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
        """Returns the seconds for which it ran, and waited for a CPU, in this burst."""
        now = self._measured(self._process.pid)
        if now == (0, 0):  # the kernel does not count: assume that others want the CPU
            return wall, wall
        ran, waited = (
            max(0, after - before) / 1e9 for after, before in zip(now, self._before, strict=True)
        )
        return ran, waited
