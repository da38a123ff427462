"""The part of the report that a page draws, as JSON: short enough to be drawn at once. Pure.

Times are seconds since the job began.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from supervisor.narrative.ends import AttemptEnd
from supervisor.report.job_report import Attempt, Lane, LossCurve, RecoveryTime, Report
from supervisor.report.summaries import age_now
from supervisor.report.thinning import XY, distinct, shares, thinned

_MOST_SPANS = 4000
"""Above that the timeline has shares of cells of time."""
_CELLS = 800
_BUCKETS = 500
"""Of a curve, each of four points."""
_MOST_BARS = 200
_MOST_BOXES = 400
"""Attempts that have a box of their own in the timeline."""
_MOST_MARKS = 400
LANES = tuple(Lane)
SYMBOLS = {
    AttemptEnd.FAILED: "✕",
    AttemptEnd.SUCCEEDED: "✓",
    AttemptEnd.DRAINED: "◆",
    AttemptEnd.MADE_WAY: "▲",
    AttemptEnd.LOST: "?",
}
"""The mark in the timeline for each end of an attempt."""


def page_data(report: Report) -> dict[str, Any]:
    """Returns what the page draws."""
    steps, commits = _steps(report), [(each.time, each.step) for each in report.commits]
    lanes = lanes_of(report)
    return {
        "began": report.began,
        "until": report.until,
        "lanes": [{"name": each, "colour": LANES.index(each)} for each in lanes],
        "spans": _spans(report, lanes),
        "attempts": _boxes(report),
        "ends": _ends(report),
        "restarts": _restarts(report),
        "steps": _line(report, steps),
        "commits": _line(report, thinned(commits, _BUCKETS)),
        "ages": _line(report, _ages(report)),
        "rungs": _line(report, thinned(_rungs(report), _BUCKETS)),
        "fullRung": report.full_rung,
        "losses": [_loss(each) for each in report.losses],
        "recoveries": _recoveries(report.recoveries),
    }


def lanes_of(report: Report) -> list[Lane]:
    """Returns the lanes in which the job has been."""
    used = {each.lane for each in report.spans}
    return [each for each in LANES if each in used]


def part_names(recoveries: Sequence[RecoveryTime]) -> list[str]:
    """Returns the names of the parts of recoveries, in the order in which they first come."""
    return list(dict.fromkeys(name for each in recoveries for name in each.parts))


def _spans(report: Report, lanes: Sequence[Lane]) -> list[list[float]]:
    cells = shares(report.spans, _MOST_SPANS, _CELLS)
    return [
        [
            lanes.index(lane),
            _since(report, start),
            _since(report, end),
            1 if share == 1 else round(share, 3),
        ]
        for lane, start, end, share in cells
    ]


def _since(report: Report, time: float) -> float:
    return round(time - report.began, 2)


def _end(report: Report, attempt: Attempt) -> float:
    return attempt.ended if attempt.ended is not None else report.until


def _boxes(report: Report) -> list[list[float]]:
    """Returns number, start and end of each attempt; none if there are too many to be seen."""
    if len(report.attempts) > _MOST_BOXES:
        return []
    return [
        [each.number, _since(report, each.started), _since(report, _end(report, each))]
        for each in report.attempts
    ]


def _ends(report: Report) -> list[dict[str, Any]]:
    found = []
    for end, symbol in SYMBOLS.items():
        times = [each.ended for each in report.attempts if each.end == end]
        known = distinct(filter(None, times), report.began, report.until, _MOST_MARKS)
        good = end is not AttemptEnd.FAILED
        if known:
            told = [_since(report, time) for time in known]
            found.append({"symbol": symbol, "good": good, "times": told})
    return found


def _restarts(report: Report) -> list[float]:
    times = [each.started for each in report.attempts[1:]]
    known = distinct(times, report.began, report.until, _MOST_MARKS)
    return [_since(report, time) for time in known]


def _steps(report: Report) -> list[tuple[float, float | None]]:
    """Returns the steps over time, with a gap where another attempt begins if there are few."""
    points = [(each.time, each.step) for each in report.steps]
    short = thinned(points, _BUCKETS)
    if len(short) < len(points):
        return [*short]
    found: list[tuple[float, float | None]] = []
    before = None
    for each in report.steps:
        if before is not None and each.attempt != before:
            found.append((each.time, None))
        found.append((each.time + (0.01 if before not in (None, each.attempt) else 0), each.step))
        before = each.attempt
    return found


def _ages(report: Report) -> list[XY]:
    """Returns the age of the newest checkpoint: it grows until a new one is committed."""
    points: list[XY] = [(report.began, 0.0)]
    for each in report.commits:
        points += [(each.time, each.age), (each.time + 0.01, 0.0)]
    if (now := age_now(report)) is not None:
        points.append((report.until, now))
    return thinned(points, _BUCKETS)


def _rungs(report: Report) -> list[XY]:
    points = [(each.time, float(each.num_devices)) for each in report.rungs]
    return [*points, (max(report.until, points[-1][0] + 1), points[-1][1])] if points else []


def _line(report: Report, points: Sequence[tuple[float, float | None]]) -> list[list[Any]]:
    return [
        [_since(report, x) for x, _ in points],
        [None if y is None else round(y, 3) for _, y in points],
    ]


def _loss(curve: LossCurve) -> dict[str, Any]:
    points = curve.points
    steps = [each.step for each in points]
    is_thinned = any(each.low != each.high for each in points)
    return {
        "steps": steps,
        "last": [_short(each.last) for each in points],
        "low": [_short(each.low) for each in points if is_thinned],
        "high": [_short(each.high) for each in points if is_thinned],
        "restarts": distinct(curve.restarts, 0, max(steps, default=1), _MOST_MARKS),
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _recoveries(recoveries: Sequence[RecoveryTime]) -> dict[str, Any]:
    """Returns the seconds of each part by attempt; of many recoveries, means of neighbours."""
    names = part_names(recoveries)
    size = -(-len(recoveries) // _MOST_BARS) or 1
    groups = [recoveries[start : start + size] for start in range(0, len(recoveries), size)]
    return {
        "attempts": [group[0].attempt for group in groups],
        "names": names,
        "parts": [
            [round(fmean(each.parts.get(name, 0.0) for each in group), 3) for group in groups]
            for name in names
        ],
    }
