"""A supervisor's main loop in virtual time. Events posted to it may be lost, late or doubled."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.adapters.kernel.reactor import Reactor
from supervisor.core.events import Event, Noticed, SilenceExcused, StopRequested
from tests.simulation.chance import ViolationError
from tests.simulation.machine import SimulatedMachine
from tests.simulation.true_host import TrueHost

_NO_TIME_PASSES = 5000
"""The supervisor loops without end if it waits this many times while no time passes."""

_SURE = (Noticed, SilenceExcused, StopRequested)
"""Events that always arrive in order, at once and exactly once."""


class VirtualWaiter:
    """See `reactor.Waiter`: waits for what the simulated machine does."""

    def __init__(self, host: TrueHost, machine: SimulatedMachine, give_up: float) -> None:
        """The job must have ended by the (virtual) time `give_up`."""
        self._host = host
        self._machine = machine
        self._give_up = give_up
        self._watched: list[int] = []
        self._woken = False
        self._looks = (0.0, 0)

    def watch(self, descriptor: int) -> None:
        """See `reactor.Waiter`."""
        assert descriptor not in self._watched
        self._watched.append(descriptor)

    def forget(self, descriptor: int) -> None:
        """See `reactor.Waiter`."""
        self._watched.remove(descriptor)

    def wake(self) -> None:
        """See `reactor.Waiter`."""
        self._woken = True

    def wait(self, timeout: float | None) -> list[int]:
        """See `reactor.Waiter`."""
        clock = self._host.clock
        until = None if timeout is None else clock.now() + timeout
        self._check_that_time_passes()
        while not (found := self._ready()) and not self._woken:
            if clock.time >= self._give_up:
                raise ViolationError("the job does not end although nothing goes wrong any more")
            due = self._give_up if until is None else until - clock.now() + clock.time
            if not self._host.pass_time(min(due, self._give_up)) and until is not None:
                clock.reach(until)
                return self._ready()
        if timeout != 0.0:
            self._dawdle()
        self._woken = False
        return found

    def _ready(self) -> list[int]:
        found = [each for each in self._watched if self._machine.can_be_read(each)]
        if len(found) > 1 and self._host.happens(self._host.faults.late):
            found.reverse()
        return found

    def _dawdle(self) -> None:
        """Let time pass, as if the supervisor were slow or stopped for a while; events pile up
        meanwhile."""
        if self._host.happens(self._host.faults.batch):
            until = self._host.clock.time + self._host.between(0.0, 20.0)
            while self._host.pass_time(until):
                pass

    def _check_that_time_passes(self) -> None:
        time, looks = self._looks
        now = self._host.clock.time
        self._looks = (now, looks + 1 if now == time else 0)
        if looks > _NO_TIME_PASSES:
            raise ViolationError("the supervisor runs in circles")


class FaultyLoop:
    """See `host_port.EventLoop`: the real main loop, but some of what is posted does not reach
    it."""

    def __init__(
        self,
        host: TrueHost,
        machine: SimulatedMachine,
        give_up: float,
        tell: Callable[[str], None],
        check: Callable[[Event], None],
    ) -> None:
        """`check` is called with each event that the engine posts."""
        self.told: list[Event] = []
        """All events that have arrived so far."""
        self._host = host
        self._machine = machine
        self._tell = tell
        self._check = check
        self._reactor = Reactor(host.clock, VirtualWaiter(host, machine, give_up))
        self.watch = self._reactor.watch
        self.forget = self._reactor.forget
        self.call_later = self._reactor.call_later

    @property
    def stop_requests(self) -> int:
        """See `host_port.MainLoop`."""
        return self._reactor.stop_requests

    def wait(self, until: float | None) -> list[Event]:
        """See `host_port.EventLoop`."""
        return self._reactor.wait(until)

    def has_event(self, kind: type[Event]) -> bool:
        """Whether an event of that kind has arrived and was not taken yet."""
        return self._reactor.has_event(kind)

    def post(self, event: Event) -> None:
        """Post an event: by chance it is lost, late or doubled."""
        if not self._machine.is_gone:
            self._check(event)
        faults = self._host.faults
        if isinstance(event, _SURE):
            self._arrive(event)
            return
        if self._host.happens(faults.lost):
            self._tell(f"lost: {event}")
            return
        late = self._host.happens(faults.late)
        self._deliver(event, self._host.between(0.0, 60.0) if late else 0.0)
        if self._host.happens(faults.duplicate):
            self._deliver(event, self._host.between(0.0, 60.0))

    def _deliver(self, event: Event, delay: float) -> None:
        if delay == 0.0:
            self._arrive(event)
        else:
            self._host.later(delay, lambda: self._arrive(event))

    def _arrive(self, event: Event) -> None:
        if not self._machine.is_gone:
            self.told.append(event)
            self._reactor.post(event)
