"""The main loop's one place to wait: for descriptors, timers, signals, and posted events."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from supervisor.core.clock_jump import LIMIT
from supervisor.core.events import Event, Noticed, SilenceExcused, StopRequested, StopSource
from supervisor.host.idle_signals import IDLE, ignored, name_of
from supervisor.host.notice import Notice
from supervisor.ports import Clock


class Waiter(Protocol):
    """Waits until descriptors can be read, or until it is woken."""

    def watch(self, descriptor: int) -> None:
        """Wait for `descriptor` too."""
        ...

    def forget(self, descriptor: int) -> None:
        """Do not wait for `descriptor` any more."""
        ...

    def wait(self, timeout: float | None) -> list[int]:
        """Returns the descriptors that can be read. Waits until there is one, until `wake` is
        called, or until `timeout` seconds have passed (None: no limit)."""
        ...

    def wake(self) -> None:
        """End the current wait, or else the next one. Safe in any thread and in signal handlers."""
        ...


class SystemWaiter:
    """Implements `Waiter` with the kernel's selector."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._bell, selectors.EVENT_READ)

    def watch(self, descriptor: int) -> None:
        """See `Waiter`."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def forget(self, descriptor: int) -> None:
        """See `Waiter`."""
        self._selector.unregister(descriptor)

    def wait(self, timeout: float | None) -> list[int]:
        """See `Waiter`."""
        found = [key.fd for key, _ in self._selector.select(timeout)]
        if self._bell in found:
            found.remove(self._bell)
            os.eventfd_read(self._bell)
        return found

    def wake(self) -> None:
        """See `Waiter`."""
        os.eventfd_write(self._bell, 1)


class Reactor:
    """Runs callbacks in the main thread and collects the events they post."""

    def __init__(self, clock: Clock, waiter: Waiter | None = None) -> None:
        """`waiter` does the waiting; None: a `SystemWaiter`."""
        self._clock = clock
        self._waiter = waiter if waiter is not None else SystemWaiter()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._events: deque[Event] = deque()
        self.busy_since: float | None = clock.now()
        """See `ports.MainLoopView`."""
        self.stop_requests = 0
        """How many requests to stop were posted."""
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    @property
    def is_stop_requested(self) -> bool:
        """See `ports.MainLoopView`."""
        return self.stop_requests > 0

    def post(self, event: Event) -> None:
        """Hand an event to the runtime. Safe in any thread and in signal handlers."""
        self._events.append(event)
        self.stop_requests += isinstance(event, StopRequested)
        self._waiter.wake()

    def note_progress(self) -> None:
        """Register that the main loop is busy, and does not hang."""
        self.busy_since = self._clock.now()

    def has_event(self, kind: type[Event]) -> bool:
        """True if an event of that kind was posted and not yet taken. Safe in any thread."""
        return any(isinstance(event, kind) for event in tuple(self._events))

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `descriptor` can be read, until `forget`."""
        self._waiter.watch(descriptor)
        self._callbacks[descriptor] = callback

    def forget(self, descriptor: int) -> None:
        """Stop watching `descriptor`; does nothing if it is not watched."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._waiter.forget(descriptor)

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        """Call `callback` once, `delay` seconds from now."""
        heapq.heappush(self._timers, (self._clock.now() + delay, next(self._order), callback))

    def wait(self, until: float | None) -> list[Event]:
        """Returns the posted events; blocks until there is one, or until the time `until`."""
        self._poll(0.0)  # so timers and descriptors have a turn even if events never cease
        while not self._events:
            now = self._clock.now()
            due = min((t for t in (until, self._next_timer()) if t is not None), default=None)
            timeout = None if due is None else max(0.0, due - now)
            self._poll(timeout)
            if timeout is not None:
                self._excuse(self._clock.now() - now - timeout)
            # `until` counts as reached only if the last poll began after it: a supervisor that was
            # stopped meanwhile may have reports to read, and must not take them for silence.
            if until is not None and now >= until:
                break
        return [self._events.popleft() for _ in range(len(self._events))]

    def _excuse(self, late: float) -> None:
        """Excuse the workers' silence if a poll took `late` seconds too long (more than `LIMIT`).

        What froze this supervisor may have frozen the workers too.
        """
        if late > LIMIT:
            why = f"this supervisor did not run for {late:.0f} s: that is no silence of the workers"
            self.post(SilenceExcused(self._clock.now(), late, why))

    def _poll(self, timeout: float | None) -> None:
        self.busy_since = None
        found = self._waiter.wait(timeout)
        self.busy_since = self._clock.now()
        for descriptor in found:
            if (callback := self._callbacks.get(descriptor)) is not None:  # not forgotten meanwhile
                callback()
        self._run_timers()

    def stop_on_signals(self) -> None:
        """Post a `StopRequested` event for each SIGTERM, SIGINT, SIGQUIT and SIGHUP from now on."""
        sources = {
            signal.SIGTERM: StopSource.SIGTERM,
            signal.SIGHUP: StopSource.SIGHUP,
            signal.SIGINT: StopSource.PERSON,
            signal.SIGQUIT: StopSource.PERSON,
        }

        def handle(number: int, frame: FrameType | None) -> None:
            source, name = sources[signal.Signals(number)], signal.Signals(number).name
            detail = name if name != source else ""
            at_once = number == signal.SIGQUIT
            self.post(StopRequested(self._clock.now(), source, detail, at_once))

        for number in sources:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays in force
                signal.signal(number, handle)

    def outlive_idle_signals(self) -> None:
        """Post a notice when a signal comes that asks for nothing, once for each, in place of its
        default action. A program that is started has the default action again."""
        told = set[int]()

        def handle(number: int, frame: FrameType | None) -> None:
            if number not in told:
                told.add(number)
                notice = Notice("signal-ignored", ignored(number), signal=name_of(number))
                self.post(Noticed(self._clock.now(), notice))

        for number in IDLE:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, handle)

    def _next_timer(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    def _run_timers(self) -> None:
        """Call each timer that is due now, once.

        Timers that their callbacks add wait for the next turn: so a timer that renews itself
        without a delay does not keep the others waiting.
        """
        now, added = self._clock.now(), next(self._order)
        while self._timers and self._timers[0][0] <= now and self._timers[0][1] < added:
            heapq.heappop(self._timers)[2]()
