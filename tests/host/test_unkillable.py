"""Whoever does not die is named, and is not waited for without end."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

import pytest

from supervisor.host.unkillable import GIVE_UP_AFTER, TELL_AFTER, Patience, UnkillableError


class Time:
    """A clock that goes on by itself, `step` seconds at each look."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_who_is_left_is_named_once_and_then_given_up() -> None:
    told: list[str] = []
    time = Time(0.5)
    patience = Patience(told.append, time)
    assert patience.pause == 0.0
    while time.now < GIVE_UP_AFTER:
        patience.look(True, lambda: [os.getpid()])
        assert bool(told) == (time.now > TELL_AFTER)
    with pytest.raises(UnkillableError, match=rf"pid {os.getpid()} \(.* cannot be killed"):
        patience.look(True, lambda: [os.getpid()])
    assert len(told) == 1
    assert f"pid {os.getpid()} (" in told[0]
    assert patience.pause > 0.0


def test_what_dies_in_time_is_forgotten() -> None:
    told: list[str] = []
    patience = Patience(told.append, Time(1.0))
    for _ in range(40):
        for _ in range(4):
            patience.look(True, lambda: [os.getpid()])
        patience.look(False, lambda: [os.getpid()])
    assert told == []
    assert patience.pause == 0.0


def test_a_supervisor_that_was_frozen_has_not_waited() -> None:
    told: list[str] = []
    patience = Patience(told.append, Time(1000.0))
    for _ in range(4):
        patience.look(True, lambda: [os.getpid()])
    assert told == []


def test_who_waits_for_the_end_learns_of_it_once_they_are_named() -> None:
    time = Time(0.5)
    patience = Patience(lambda text: None, time)
    patience.look(True, lambda: [os.getpid()])
    patience.give_up_early()
    while time.now < TELL_AFTER:
        patience.look(True, lambda: [os.getpid()])
        assert not patience.is_over
    with pytest.raises(UnkillableError, match=rf"pid {os.getpid()} "):
        patience.look(True, lambda: [os.getpid()])
    assert patience.is_over


def test_who_asked_before_the_kill_does_not_wait_for_what_stands_still() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert _given_up(child.pid) <= TELL_AFTER + 2
        child.kill()


def test_but_for_what_moves() -> None:
    """Whoever has much memory takes a while to die, and is not given up."""
    assert _given_up(os.getpid()) >= GIVE_UP_AFTER


def _given_up(pid: int) -> float:
    """When it is, by the patience's own clock."""
    time = Time(0.5)
    patience = Patience(lambda text: None, time)
    patience.look(True, lambda: [pid])
    patience.give_up_early_on_idle()
    while not patience.is_over:
        with suppress(UnkillableError):
            patience.look(True, lambda: [pid])
    return time.now


def test_hurry_is_over_with_what_it_was_for() -> None:
    patience = Patience(lambda text: None, Time(1.0))
    patience.give_up_early()
    patience.look(False, list)
    for _ in range(int(TELL_AFTER) + 3):
        patience.look(True, lambda: [os.getpid()])
    assert not patience.is_over
