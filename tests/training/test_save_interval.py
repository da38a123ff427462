"""The time between saves that follows from the cost of a save and the failure rate."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.failure_history import FailureHistory
from trainer.save_interval import (
    LONGEST,
    PRIOR_SECONDS,
    SHORTEST,
    SaveInterval,
    best_interval,
    mean_time_between_failures,
)

costs = st.floats(0, 1e5)
times = st.floats(0, 1e9)
histories = st.builds(FailureHistory, st.integers(0, 10**6), times)


@given(costs, costs, times)
def test_a_dearer_save_is_made_less_often(one: float, other: float, between: float) -> None:
    low, high = sorted((one, other))
    assert best_interval(low, between) <= best_interval(high, between)


@given(costs, times, times)
def test_a_job_that_fails_more_often_saves_more_often(
    cost: float, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert best_interval(cost, low) <= best_interval(cost, high)


@given(histories, st.integers(0, 10**6), times)
def test_failures_lower_the_mean_time_between_them_and_time_raises_it(
    history: FailureHistory, failures: int, seconds: float
) -> None:
    more = FailureHistory(history.failures + failures, history.seconds)
    longer = FailureHistory(history.failures, history.seconds + seconds)
    mean = mean_time_between_failures(history)
    assert mean_time_between_failures(more) <= mean <= mean_time_between_failures(longer)


@given(histories, st.lists(st.tuples(costs, times), max_size=20))
def test_the_interval_is_within_its_bounds_whatever_was_measured(
    history: FailureHistory, saves: list[tuple[float, float]]
) -> None:
    interval = SaveInterval(history)
    for cost, ran in saves:
        interval = interval.measured(cost, ran)
        assert SHORTEST <= interval.seconds <= LONGEST
        assert interval.history.seconds >= history.seconds


@given(st.floats(1.0, 30.0), st.floats(3600.0, 1e5))
def test_it_costs_less_than_any_other_interval(cost: float, between: float) -> None:
    """By the model of the source: stalls, and half an interval lost at each failure."""

    def lost(interval: float) -> float:
        return cost / interval + interval / 2 / between

    best = sqrt(2 * cost * between)
    if SHORTEST < best < LONGEST:
        assert best_interval(cost, between) == best
        assert lost(best) <= min(lost(best * 0.9), lost(best * 1.1))


def test_before_anything_is_known_a_failure_in_six_hours_is_assumed() -> None:
    assert mean_time_between_failures(FailureHistory()) == PRIOR_SECONDS == 6 * 3600
    assert mean_time_between_failures(FailureHistory(10, 5 * 3600.0)) == 3600


def test_the_first_save_comes_soon_and_the_median_of_the_others_decides() -> None:
    interval = SaveInterval()
    assert interval.seconds == SHORTEST
    interval = interval.measured(9.0, 10.0)
    assert interval.is_provisional
    assert interval.seconds == 90.0, "soon enough to measure what a save costs by itself"
    for cost in (1.0, 500.0, 1.0):
        interval = interval.measured(cost, 0.0)
    assert not interval.is_provisional
    assert interval.seconds == pytest.approx(sqrt(2 * 1.0 * (6 * 3600 + 10)))


def test_only_the_last_costs_count() -> None:
    interval = SaveInterval(first=1.0)
    for cost in (*(1.0,) * 20, *(4.0,) * 5):
        interval = interval.measured(cost, 0.0)
    assert interval.seconds == best_interval(4.0, PRIOR_SECONDS)


@given(histories, costs, costs)
def test_a_dearer_first_save_puts_the_next_one_off(
    history: FailureHistory, one: float, other: float
) -> None:
    low, high = (SaveInterval(history, cost) for cost in sorted((one, other)))
    assert low.seconds <= high.seconds


def test_what_has_changed_by_much_is_news() -> None:
    first = SaveInterval().measured(9.0, 0.0)
    chosen = first.measured(1.0, 0.0)
    assert first.is_news_after(None)
    assert chosen.is_news_after(first)
    assert not SaveInterval(first=9.0, costs=(2.0,)).is_news_after(chosen)
    assert SaveInterval(first=9.0, costs=(2.3,)).is_news_after(chosen)


def test_the_reasons_are_told() -> None:
    interval = SaveInterval(FailureHistory(3, 2 * 3600.0)).measured(2.0, 0.0)
    assert interval.text == (
        "the next checkpoint is saved in 20 s: the first save stalled training for 2 s, which "
        "includes what only the first one does"
    )
    assert interval.measured(0.5, 0.0).text == (
        "a checkpoint every 85 s from now on: a save stalls training for 0.5 s, and one failure is "
        "expected in 2.0 h (3 failures in 2.0 h so far)"
    )
    text = SaveInterval(FailureHistory(1, 90.0), 2.0, (0.5,)).text
    assert text.endswith("expected in 3.0 h (1 failure in 1.5 min so far)")
