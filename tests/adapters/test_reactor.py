"""The reactor: what is ready and what is due, also where time has leapt."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime

from supervisor.adapters.kernel.reactor import Reactor
from supervisor.core.events import Noticed, SilenceExcused, StopRequested
from supervisor.host.notice import Notice

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


class HandClock:
    """A clock that is moved by hand."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def wall(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)


def test_what_came_while_the_process_was_stopped_is_read_before_its_deadline_is_over() -> None:
    clock = HandClock()
    reactor = Reactor(clock)
    read_end, write_end = os.pipe()
    sign = Notice("observer-failed", "a sign of life")
    reactor.watch(read_end, lambda: reactor.post(Noticed(clock.now(), sign)))

    def time_leaps() -> None:
        os.write(write_end, b"step")
        clock.time = 100.0

    reactor.call_later(0.0, time_leaps)
    (event,) = reactor.wait(until=5.0)
    assert event == Noticed(100.0, sign)
    os.close(read_end)
    os.close(write_end)


def test_without_anything_it_ends_at_its_deadline() -> None:
    clock = HandClock()
    reactor = Reactor(clock)
    clock.time = 5.0
    assert reactor.wait(until=5.0) == []


def test_while_the_process_did_not_run_nobody_can_have_been_silent() -> None:
    """A frozen container: the workers wake with us, and have had no time to speak."""
    clock = HandClock()
    reactor = Reactor(clock)
    read_end, write_end = os.pipe()
    looks: list[bytes] = []

    def look() -> None:
        if looks:  # the first one only sees what there is; in the second we freeze
            clock.time = 20.0
            os.read(read_end, 1)
        looks.append(b"look")

    reactor.watch(read_end, look)
    os.write(write_end, b"x")
    (event,) = reactor.wait(until=5.0)
    assert isinstance(event, SilenceExcused)
    assert (event.at, event.seconds) == (20.0, 15.0)
    assert "did not run for 15 s" in event.why
    os.close(read_end)
    os.close(write_end)


class OverrunError(Exception):
    """A turn that does not end."""


def again_and_again(reactor: Reactor, order: list[str]) -> None:
    """A timer that renews itself without a delay, as who kills what does not die."""

    def renew() -> None:
        order.append("again")
        if len(order) > 100:
            raise OverrunError
        reactor.call_later(0.0, renew)

    reactor.call_later(0.0, renew)


def test_a_timer_that_renews_itself_keeps_nobody_waiting() -> None:
    """Descriptors, other timers, signals and deadlines have their turn between two of its own."""
    clock = HandClock()
    reactor = Reactor(clock)
    order: list[str] = []
    read_end, write_end = os.pipe()

    def read() -> None:
        order.append(os.read(read_end, 1).decode())

    again_and_again(reactor, order)
    reactor.call_later(0.0, lambda: order.append("timer"))
    reactor.watch(read_end, read)
    os.write(write_end, b"xy")
    assert reactor.wait(until=0.0) == []
    assert order == ["x", "again", "timer", "y", "again"]
    os.close(read_end)
    os.close(write_end)


def test_a_signal_is_heard_between_two_turns_of_a_timer_that_renews_itself() -> None:
    clock = HandClock()
    reactor = Reactor(clock)
    order: list[str] = []
    again_and_again(reactor, order)
    before = {number: signal.getsignal(number) for number in STOPS}
    reactor.stop_on_signals()
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        events = reactor.wait(until=5.0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [type(event) for event in events] == [StopRequested]
    assert order == ["again"]
    assert reactor.is_stop_requested
