"""A slow pattern gets a tenth of the time; a usual one is searched for in every line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.search_time import SearchTime

SLOW = 0.01
costs = st.floats(min_value=1e-3, max_value=0.25)


def searched(cost: float, characters: int, seconds: float, start: float = 0.0) -> float:
    """Seconds of searching in `seconds` of an endless flood, in which a line that is passed over
    takes a millisecond."""
    budget, now, spent = SearchTime(), start, 0.0
    while now < start + seconds:
        if budget.allows(now):
            budget.took(cost, characters)
            now, spent = now + cost, spent + cost
        else:
            now += 1e-3
    return spent


@given(costs)
def test_slow_searches_take_a_tenth_of_the_time(cost: float) -> None:
    assert searched(cost, 100, 20.0) <= 1.1 * (1.0 + 0.1 * 20.0 + cost), "and what is free"


@given(st.integers(min_value=0, max_value=4096))
def test_usual_searches_are_all_made(characters: int) -> None:
    budget = SearchTime()
    for _ in range(100_000 // (characters + 1)):
        assert budget.allows(0.0)
        budget.took(3e-6 + 100e-9 * characters, characters)


def test_what_was_slow_is_searched_again_later() -> None:
    budget = SearchTime()
    while budget.allows(5.0):
        budget.took(SLOW, 100)
    assert not budget.allows(5.0)
    assert budget.allows(6.0)
