"""Kills what is left of an attempt, one try after the other, until nothing is.

There is one chain of tries, however often it is asked for: the decision core asks again when it
hears nothing for a while, and each chain of its own would kill and judge the attempt once more.
Between two tries the main loop turns, so that it hears signals and workers, and pets its watchdog
for as long as it really turns.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.engines.machine import MainLoop, Processes


class Killing:
    """The one chain of tries."""

    def __init__(self, reactor: MainLoop, processes: Processes) -> None:
        self._reactor = reactor
        self._processes = processes
        self._stops: int | None = None
        """How many requests to stop had come when the chain began; None: there is no chain."""

    def until_gone(self, kill: Callable[[], bool], then: Callable[[], None]) -> None:
        """Call `kill` until it returns False, which says that nothing is left, and then `then`.
        While an earlier chain still runs, that one goes on with these two in the place of its own.

        Raises:
            UnkillableError: something does not die. Whoever asks the job to stop meanwhile learns
                that as soon as what is left was named.
        """
        self._kill, self._then = kill, then
        if self._stops is None:
            self._stops = self._reactor.stops
            if self._stops:
                self._processes.asked()
            self._try()

    def _try(self) -> None:
        if self._reactor.stops != self._stops:
            self._processes.hurry()
        if self._kill():
            self._reactor.call_later(self._processes.pause, self._try)
            return
        self._stops = None
        self._then()
