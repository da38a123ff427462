"""Lets a process in the background run in short bursts while others want the CPU that it gets.

The lowest priority is not enough for that: a thread that runs on a CPU, however humble, is in the
way of those that wake up there a moment later, and a training step wakes many.
"""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGCONT, SIGSTOP

from supervisor.adapters.contention import ran_and_waited
from supervisor.adapters.processes import WorkerProcess
from supervisor.adapters.reactor import Reactor

_BURST = 0.2
_PAUSE = 2.0
_CONTENDED = 0.1
"""How long it waits for each second that it runs if others want the CPU. Alone it hardly waits."""


class Throttle:
    """Stops and continues one process, until `end`."""

    def __init__(
        self,
        reactor: Reactor,
        process: WorkerProcess,
        measured: Callable[[int], tuple[int, int]] = ran_and_waited,
    ) -> None:
        """The process has just been started, and may run; `measured` tells of a pid for how long
        it has run, and has waited to run."""
        self.ran = 0.0
        """Seconds for which it was let run."""
        self._reactor = reactor
        self._process = process
        self._measured = measured
        self._turn = 0
        """Counts what is begun: a timer that was set before is of no concern."""
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
        self._before = self._measured(self._process.pid)
        self._after(_BURST, self._rest)

    def _rest(self) -> None:
        self.ran += _BURST
        if self._is_in_the_way():
            self._process.signal(SIGSTOP)
            self._after(_PAUSE, self._continue)
        else:
            self._burst()

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        turn = self._turn

        def due() -> None:
            if self._turn == turn:
                then()

        self._reactor.call_later(seconds, due)

    def _is_in_the_way(self) -> bool:
        now = self._measured(self._process.pid)
        ran, waited = (after - before for after, before in zip(now, self._before, strict=True))
        return waited >= _CONTENDED * ran  # a kernel that does not count: perhaps it is
