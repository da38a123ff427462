"""Makes curves of a million points short, so that a page draws them at once. Pure.

Nothing that is seen on a screen is lost: of each bucket the first, the smallest, the largest and
the last point stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from supervisor.report.job_report import Lane, Span

XY = tuple[float, float]


def thinned(points: Sequence[XY], buckets: int) -> list[XY]:
    """Returns at most four points for each of so many buckets along x, which rises."""
    if len(points) <= 4 * buckets:
        return list(points)
    first, width = points[0][0], _width(points[0][0], points[-1][0], buckets)
    found: list[XY] = []
    bucket: list[XY] = []
    number = 0
    for point in points:
        place = int((point[0] - first) / width)
        if place != number:
            found += _extremes(bucket)
            bucket, number = [], place
        bucket.append(point)
    return [*found, *_extremes(bucket)]


def _width(first: float, last: float, buckets: int) -> float:
    return (last - first) / buckets or 1.0


def _extremes(bucket: Sequence[XY]) -> list[XY]:
    if len(bucket) <= 4:
        return list(bucket)
    by_height = sorted(range(len(bucket)), key=lambda number: bucket[number][1])
    kept = sorted({0, by_height[0], by_height[-1], len(bucket) - 1})
    return [bucket[number] for number in kept]


def distinct(values: Iterable[float], first: float, last: float, buckets: int) -> list[float]:
    """Returns the values, at most one for each of so many buckets from `first` to `last`."""
    width = _width(first, last, buckets)
    by_bucket = {int((value - first) / width): value for value in values}
    return sorted(by_bucket.values())


Share = tuple[Lane, float, float, float]
"""A lane, the start and the end of a time, and which share of that time is in the lane."""


def shares(spans: Sequence[Span], most: int, num_cells: int) -> list[Share]:
    """Returns the spans, each with the share 1; if there are more than `most`, the shares of the
    lanes in so many equal cells of time."""
    if len(spans) <= most or not spans:
        return [(each.lane, each.start, each.end, 1.0) for each in spans]
    first, width = spans[0].start, _width(spans[0].start, spans[-1].end, num_cells)
    cells: dict[tuple[int, Lane], float] = {}
    for each in spans:
        at = each.start
        while at < each.end:
            cell = min(int((at - first) / width), num_cells - 1)
            until = each.end if cell == num_cells - 1 else min(each.end, first + (cell + 1) * width)
            until = max(until, math.nextafter(at, math.inf))
            cells[cell, each.lane] = cells.get((cell, each.lane), 0.0) + until - at
            at = until
    return [
        (lane, first + cell * width, first + (cell + 1) * width, min(1.0, seconds / width))
        for (cell, lane), seconds in sorted(cells.items())
    ]
