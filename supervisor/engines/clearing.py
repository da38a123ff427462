"""Waits until an attempt has freed all it had: its processes are dead, its TPU chips are closed.

There is at most one chain of kill attempts, however often one is asked for. The core asks again
when it gets no answer for a while, and a second chain would kill and judge the attempt a second
time. The main loop runs between two kills, so that it handles signals and workers, and the watchdog
sees it.

The kernel lets one process at a time open a chip, and processes of an attempt may take seconds to
disappear. A worker or probe that starts before that finds the chips busy. Processes that had a chip
open before the attempt began are not waited for.
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
"""Seconds to wait for the chips. After that, the next attempt starts and reports what it finds."""


class Clearing:
    """Kills an attempt again and again until nothing of it is left."""

    def __init__(self, reactor: MainLoop, processes: Processes) -> None:
        self._reactor = reactor
        self._processes = processes
        self._stop_requests: int | None = None
        """How many requests to stop had come when the chain began; None: no chain runs."""

    def kill_until_gone(self, kill: Callable[[], bool], then: Callable[[], None]) -> None:
        """Call `kill` until it returns False (nothing is left), and then `then`.

        If a chain already runs, it goes on with these two functions instead of its own.

        Raises:
            UnkillableError: a process does not die. After a request to stop it is raised as soon
                as the process was named to people.
        """
        self._kill, self._then = kill, then
        if self._stop_requests is None:
            self._stop_requests = self._reactor.stop_requests
            if self._stop_requests:
                self._processes.give_up_early_on_idle()
            self._try()

    def _try(self) -> None:
        if self._reactor.stop_requests != self._stop_requests:
            self._processes.give_up_early()
        if self._kill():
            self._reactor.call_later(self._processes.pause, self._try)
            return
        self._stop_requests = None
        self._then()


class Releasing:
    """Waits until other processes have closed the TPU chips; at most one wait at a time."""

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
        self._earlier_holders: frozenset[int] = frozenset()
        self._end: float | None = None
        """When the wait is over at the latest; None: no wait goes on."""
        self._then: Callable[[], None] = lambda: None
        """What is called when the wait is over."""

    def note_earlier_holders(self) -> None:
        """Remember which processes have a chip open before an attempt begins: they are not waited
        for."""
        self._earlier_holders = frozenset(holder.pid for holder in self._holders())

    def until_released(self, then: Callable[[], None]) -> None:
        """Call `then` when all chips are closed, or after `patience` seconds.

        During a wait it replaces the `then` of that wait, and its end stays the same.
        """
        self._then = then
        if self._end is None:
            self._end = self._clock.now() + self._patience
            self._look(is_first=True)

    def _look(self, *, is_first: bool) -> None:
        assert self._end is not None
        left = [each for each in self._holders() if each.pid not in self._earlier_holders]
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
