"""An observer harms neither the job nor another observer."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.adapters.telling.systemd import Notifier, ServiceManager, SystemdWatchdog
from supervisor.core.events import Noticed, PhaseBegun, SupervisorStarted
from supervisor.core.machine import step
from supervisor.core.state import JobState
from supervisor.host.notice import Notice
from supervisor.observers import IsolatedObservers
from supervisor.ports import CallLater, Transition
from tests.core.history import policy
from tests.running import eventually

EVENT = SupervisorStarted(0.0, "job", policy(), None)
AFTER, DECISIONS = step(JobState(), EVENT, policy())
STARTED = Transition(EVENT, JobState(), AFTER, DECISIONS, datetime(2030, 1, 1, tzinfo=UTC))


class Counting:
    """An observer that fails, or not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.seen = 0
        self._error = error

    def observe(self, transition: Transition) -> None:
        self.seen += 1
        if self._error is not None:
            raise self._error


def test_one_that_fails_is_told_of_once_and_off(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    broken, sound = Counting(RuntimeError("no picture")), Counting()
    observers = IsolatedObservers(policy(), Reactor(SystemClock()).call_later, told.append)
    observers.add(broken, sound)
    for _ in range(3):
        observers.observe(STARTED)
    assert (broken.seen, sound.seen) == (1, 3)
    assert told == ["Counting failed (RuntimeError('no picture')): it is off, and the job goes on"]
    assert "RuntimeError: no picture" in capfd.readouterr().err, "with its traceback: it is a bug"


class Renewing(Counting):
    """An observer whose timer renews itself, and fails or not."""

    def __init__(self, call_later: CallLater, turn: Callable[[], None]) -> None:
        super().__init__()
        self._call_later = call_later
        self._turn = turn
        call_later(0.0, self._again)

    def _again(self) -> None:
        self._call_later(0.0, self._again)
        self._turn()


def test_one_whose_timer_fails_is_told_of_once_and_off(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    turns = {"broken": 0, "sound": 0}
    clock = SystemClock()
    reactor = Reactor(clock)

    def break_down() -> None:
        turns["broken"] += 1
        raise RuntimeError("can't start new thread")

    def go_on() -> None:
        turns["sound"] += 1
        if turns["sound"] == 3:
            reactor.post(Noticed(clock.now(), Notice("observer-failed", "enough")))

    observers = IsolatedObservers(policy(), reactor.call_later, told.append)
    made: list[Renewing] = []
    for turn in (break_down, go_on):

        def make(call_later: CallLater, turn: Callable[[], None] = turn) -> Renewing:
            made.append(Renewing(call_later, turn))
            return made[-1]

        observers.add_with_timers(make)
    assert [event for event in reactor.wait(None) if isinstance(event, Noticed)]
    observers.observe(STARTED)
    assert turns == {"broken": 1, "sound": 3}
    assert [observer.seen for observer in made] == [0, 1]
    assert told == [
        'Renewing failed (RuntimeError("can\'t start new thread")): it is off, and the job goes on'
    ]
    assert "RuntimeError: can't start new thread" in capfd.readouterr().err


def test_the_watchdog_of_systemd_goes_on_where_the_observer_that_tells_it_is_off(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    clock = SystemClock()
    reactor = Reactor(clock)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        notifier = Notifier(str(tmp_path / "notify"))
        SystemdWatchdog(notifier, 0.01, reactor.call_later)
        observers = IsolatedObservers(policy(), reactor.call_later, told.append)
        observers.add_with_timers(partial(ServiceManager, notifier, policy(), clock))
        observers.observe(replace(STARTED, after=replace(AFTER, phase=7)))
        assert systemd.recv(4096) == b"WATCHDOG=1"
        assert [text.partition(" (")[0] for text in told] == ["ServiceManager failed"]

        def is_petted() -> bool:
            reactor.wait(until=clock.now())
            with suppress(BlockingIOError):
                return systemd.recv(4096) == b"WATCHDOG=1"
            return False

        assert eventually(is_petted)
        assert eventually(is_petted)
        notifier.close()
    assert "IndexError" in capfd.readouterr().err


def test_what_cannot_be_told_is_told_of_once_and_the_observers_go_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said: list[str] = []
    sound = Counting()
    observers = IsolatedObservers(policy(), Reactor(SystemClock()).call_later, said.append)
    observers.add(sound)
    begun = PhaseBegun(0.0, 7, "nowhere", None)  # of a phase that the policy has not
    for _ in range(3):
        observers.observe(replace(STARTED, event=begun, after=replace(AFTER, directory="nowhere")))
    assert sound.seen == 3
    (line,) = said
    assert line.startswith("an event cannot be rendered (IndexError(")
    assert "IndexError" in capfd.readouterr().err
