"""Trying again, on a clock of the test's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.retry import PassesError, Pauses, Retry


class Time:
    """A clock that only a sleep, or a try, moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def failing(time: Time, costs: float, times: float = math.inf) -> Callable[[float], list[float]]:
    """A try that takes so long and fails so often; it returns what it was told to be left."""
    told: list[float] = []

    def attempt(left: float) -> list[float]:
        told.append(left)
        time.now += costs
        if len(told) > times:
            return told
        raise PassesError(OSError(f"try {len(told)} failed")) from ValueError("the reason")

    return attempt


def test_pauses_double_to_a_bound() -> None:
    pauses = Pauses(0.25, 8.0)
    assert [pauses.before(number) for number in range(1, 9)] == [0.25, 0.5, 1, 2, 4, 8, 8, 8]
    assert pauses.before(10_000) == 8.0


@given(number=st.integers(1, 100), luck=st.floats(0, 1), spread=st.floats(0, 1))
def test_luck_takes_a_share_of_a_pause(number: int, luck: float, spread: float) -> None:
    whole = Pauses(0.25, 8.0).before(number)
    assert whole * (1 - spread) - 1e-9 <= Pauses(0.25, 8.0, spread).before(number, luck) <= whole


def test_a_try_that_succeeds_ends_it_and_is_told_what_is_left() -> None:
    time = Time()
    retry = Retry(Pauses(1.0, 4.0), seconds=60.0)
    told = retry.call(failing(time, costs=2.0, times=3), sleep=time.sleep, clock=time.clock)
    assert told == [60.0, 57.0, 53.0, 47.0]
    assert time.slept == [1.0, 2.0, 4.0]


def test_the_last_of_so_many_tries_tells_its_own_error_and_the_reason() -> None:
    time = Time()
    with pytest.raises(OSError, match="try 3 failed") as raised:
        Retry(Pauses(1.0, 4.0), tries=3).call(failing(time, 0.0), sleep=time.sleep)
    assert time.slept == [1.0, 2.0], "nothing is waited for after the last"
    assert str(raised.value.__cause__) == "the reason"


@given(costs=st.floats(0, 5), seconds=st.floats(0.1, 60), luck=st.floats(0, 1))
def test_no_pause_begins_that_would_end_beyond_the_bound(
    costs: float, seconds: float, luck: float
) -> None:
    time = Time()
    retry = Retry(Pauses(0.25, 8.0, 0.5), seconds=seconds)
    with pytest.raises(OSError, match="failed"):
        retry.call(failing(time, costs), sleep=time.sleep, clock=time.clock, luck=lambda: luck)
    assert time.now < seconds + costs


def test_what_does_not_pass_is_not_tried_again() -> None:
    def attempt(_left: float) -> None:
        raise KeyError("for good")

    time = Time()
    with pytest.raises(KeyError, match="for good"):
        Retry(Pauses(1.0, 4.0)).call(attempt, sleep=time.sleep)
    assert time.slept == []
