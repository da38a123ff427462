"""Waits until what an attempt had is free: its processes are dead, and its TPU chips are closed.

Clearing is one chain of tries, however often it is asked for: the decision core asks again when it
hears nothing for a while, and each chain of its own would kill and judge the attempt once more.
Between two tries the main loop turns, so that it hears signals and workers, and pets its watchdog
for as long as it really turns.

The kernel opens a chip for one process at a time, and what an attempt has left may take seconds to
be gone: whoever starts before, or looks at the devices, finds them busy. Who had a chip open before
the attempt began has it by right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from supervisor.adapters.platforms.accelerators import Holder
from supervisor.engines.holders import each_told
from supervisor.engines.host_port import MainLoop, Processes
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Clock

_PAUSE = 0.2
_PATIENCE = 30.0
"""Seconds. Longer, and it is no remnant: the next attempt then says what it finds."""


class Clearing:
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


class Releasing:
    """Waits for the chips, one wait at a time."""

    def __init__(
        self,
        reactor: MainLoop,
        clock: Clock,
        holders: Callable[[], Iterable[Holder]],
        tell: Tell,
        redact: Callable[[str], str],
        patience: float = _PATIENCE,
    ) -> None:
        self._patience = patience
        self._reactor = reactor
        self._clock = clock
        self._holders = holders
        self._tell = tell
        self._redact = redact
        self._by_right: frozenset[int] = frozenset()
        self._end: float | None = None
        """When the wait is over; None: nobody waits."""
        self._then: Callable[[], None] = lambda: None
        """What is called when the wait is over."""

    def begins(self) -> None:
        """An attempt begins: who has a chip open now is none of it."""
        self._by_right = frozenset(holder.pid for holder in self._holders())

    def until_released(self, then: Callable[[], None]) -> None:
        """Call `then` when nobody else has a chip open, or after `patience` seconds. During a wait
        it replaces the `then` of that wait, whose end stays as it is."""
        self._then = then
        if self._end is None:
            self._end = self._clock.now() + self._patience
            self._look(is_first=True)

    def _look(self, *, is_first: bool) -> None:
        assert self._end is not None
        left = [each for each in self._holders() if each.pid not in self._by_right]
        if left and self._clock.now() < self._end:
            if is_first:
                self._say("waiting until it is closed", left)
            self._reactor.call_later(_PAUSE, lambda: self._look(is_first=False))
            return
        if left:
            self._say(
                f"not closed within {self._patience:g} s, which the next attempt may meet", left
            )
        self._end = None
        self._then()

    def _say(self, what: str, holders: Iterable[Holder]) -> None:
        for line in each_told(holders, self._redact):
            self._tell(Notice("device-in-use", f"{line}: {what}", reason=what))
