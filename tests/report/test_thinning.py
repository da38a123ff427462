"""Curves of any length become short, and nothing that is seen of them is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.report.job_report import Lane, Span
from supervisor.report.thinning import XY, distinct, shares, thinned

CURVES = st.lists(st.tuples(st.floats(0, 1e9), st.floats(-1e6, 1e6)), min_size=1, max_size=300).map(
    lambda points: sorted(points, key=lambda point: point[0])
)


@given(CURVES, st.integers(1, 20))
def test_a_thinned_curve_is_short_and_keeps_its_ends_and_extremes(
    points: list[XY], buckets: int
) -> None:
    short = thinned(points, buckets)
    assert len(short) <= 4 * (buckets + 1)
    assert set(short) <= set(points)
    assert short == sorted(short, key=lambda point: point[0])
    assert (short[0], short[-1]) == (points[0], points[-1])
    heights, kept = [y for _, y in points], [y for _, y in short]
    assert (min(kept), max(kept)) == (min(heights), max(heights))


def test_a_peak_of_one_step_in_a_million_stays() -> None:
    points = [(float(n), 1.0) for n in range(1_000_000)]
    points[777_777] = (777_777.0, 9.0)
    assert (777_777.0, 9.0) in thinned(points, 500)


def spans_of(lengths: list[float]) -> list[Span]:
    lanes = list(Lane)
    found, at = [], 100.0
    for number, each in enumerate(lengths):
        found.append(Span(lanes[number % 3], at, at + each))
        at += each
    return found


@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=200), st.integers(1, 30))
def test_shares_of_cells_add_up_to_the_time_in_each_lane(lengths: list[float], cells: int) -> None:
    spans = spans_of(lengths)
    told = shares(spans, 0, cells)
    for lane in {each.lane for each in spans}:
        seconds = sum(each.end - each.start for each in spans if each.lane is lane)
        shown = sum((end - start) * share for each, start, end, share in told if each is lane)
        assert shown == pytest.approx(seconds, rel=1e-6, abs=1e-6)
    assert len(told) <= 3 * cells


def test_few_spans_stay_as_they_are() -> None:
    spans = spans_of([1.0, 2.0])
    assert shares(spans, 2, 10) == [
        (Lane.TRAINING, 100.0, 101.0, 1.0),
        (Lane.EVALUATING, 101.0, 103.0, 1.0),
    ]


def test_marks_are_one_for_each_bucket() -> None:
    assert distinct([1.0, 1.1, 5.0, 9.9], 0.0, 10.0, 10) == [1.1, 5.0, 9.9]
    assert len(distinct([n / 100 for n in range(1000)], 0.0, 10.0, 40)) <= 41
