"""Renders the report as text, for a terminal or a mail. It has no characters beyond ASCII of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from supervisor.narrative.durations import duration
from supervisor.narrative.event_line import count
from supervisor.narrative.findings import spike_in_words, use_in_words
from supervisor.report.job_report import FailedAttempt, LossCurve, Report
from supervisor.report.page_data import lanes_of
from supervisor.report.summaries import (
    age_now,
    kinds_of,
    lane_seconds,
    part_times,
    time_between_commits,
)
from supervisor.report.thinning import shares

_COLUMNS = 60
"""Of the timeline and of the curve of losses."""
_SHADES = " .:=#"
"""How much of a column of the timeline is in a lane: not at all, up to all of it."""
_NEWEST = 20
"""Attempts, failures and rungs that are told one by one: the newest ones."""


def text_of(report: Report) -> str:
    """Returns the text. What comes from the job is in it as it is."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    head = report.head
    yield f"job {head.job} in {head.model_dir}"
    yield head.standing
    if head.exit_code is not None:
        yield f"exit code {head.exit_code}: {head.ended_because}"
    told = {"cause": head.cause, "what to do": head.advice, "not all is known": report.missing}
    yield from (f"{name}: {text}" for name, text in told.items() if text)
    yield head.goodput or "goodput: not known"
    sections = {
        "TIMELINE": _timeline(report),
        "ATTEMPTS": _attempts(report),
        "FAILURES": _failures(report),
        "RECOVERIES": _recoveries(report),
        "GOODPUT BY CAUSE": _goodput(report),
        "LOSS": _losses(report),
        "RUNGS": _rungs(report),
        "CHECKPOINTS": _checkpoints(report),
    }
    for title, lines in sections.items():
        yield ""
        yield title
        yield from (f"  {line}".rstrip() for line in lines)


def _when(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"


def _timeline(report: Report) -> Iterator[str]:
    yield f"{_when(report.began)} to {_when(report.until)} (UTC)"
    lanes, seconds = lanes_of(report), lane_seconds(report)
    width = max((len(each) for each in lanes), default=0)
    cells = shares(report.spans, 0, _COLUMNS)
    whole = (report.until - report.began) / _COLUMNS or 1.0
    for lane in lanes:
        drawn = [" "] * _COLUMNS
        for each, start, _, share in cells:
            place = min(_COLUMNS - 1, round((start - report.began) / whole))
            if each is lane:
                drawn[place] = _SHADES[max(1, round(share * (len(_SHADES) - 1)))]
        yield f"{lane.ljust(width)} |{''.join(drawn)}| {duration(seconds[lane])}"


def _attempts(report: Report) -> Iterator[str]:
    rows = [("attempt", "started", "time", "end", "code", "devices", "steps")]
    for each in report.attempts[-_NEWEST:]:
        ended = each.ended if each.ended is not None else report.until
        first = "?" if each.first_step is None else str(each.first_step)
        rows.append(
            (
                str(each.number),
                _when(each.started),
                duration(max(0.0, ended - each.started)),
                each.end,
                each.code or "-",
                "-" if each.num_devices is None else str(each.num_devices),
                "-" if each.last_step is None else f"{first} to {each.last_step}",
            )
        )
    yield from _left_out(len(report.attempts), "attempt")
    yield from _table(rows)


def _failures(report: Report) -> Iterator[str]:
    if not report.failures:
        yield "no attempt has failed"
        return
    rows = [("code", "verdict", "times", "last", "cause")]
    for kind in kinds_of(report.failures):
        rows.append((kind.code, kind.verdict, str(kind.times), _when(kind.last), kind.cause))
    yield from _table(rows)
    yield from _left_out(len(report.failures), "failure")
    for each in report.failures[-_NEWEST:]:
        yield ""
        yield from _failure(each)


def _failure(it: FailedAttempt) -> Iterator[str]:
    at = f", at {it.place}" if it.place else ""
    yield f"attempt {it.attempt}: {it.cause} (verdict {it.verdict}, code {it.code})"
    yield f"  root cause (rank {it.rank}): {it.root_cause}{at}"
    yield f"  ranks: {'; '.join(it.exits)}"
    step = "none" if it.step is None else it.step
    newest = "none" if it.committed is None else f"step {it.committed}"
    yield f"  last stage: {it.stage or 'none'}; last step: {step}; newest checkpoint: {newest}"
    yield f"  why: {it.reason}"
    yield f"  decided: {it.decision}; restarts: {it.restarts}"
    yield f"  what to do: {it.advice}"


def _recoveries(report: Report) -> Iterator[str]:
    if not report.recoveries:
        yield "none is recorded: nothing has completed a step after a failure"
        return
    rows: list[tuple[str, ...]] = [("part", "times", "median", "90%", "longest", "together")]
    for each in part_times(report.recoveries):
        times = (each.median, each.ninth_decile, each.longest, each.total)
        rows.append((each.name, str(each.times), *map(duration, times)))
    yield from _table(rows)


def _goodput(report: Report) -> Iterator[str]:
    told = report.goodput
    if told is None or not told["seconds"]:
        yield "not known"
        return
    rows = [
        (part.replace("_", " "), duration(seconds), f"{seconds / told['seconds']:.1%}")
        for part, seconds in sorted(told["parts"].items(), key=lambda each: -each[1])
    ]
    yield from _table(rows)


def _losses(report: Report) -> Iterator[str]:
    if report.no_losses:
        yield report.no_losses
    for each in report.losses:
        yield from _loss(each)


def _loss(curve: LossCurve) -> Iterator[str]:
    points = curve.points
    if points:
        lowest = min(points, key=lambda each: each.low)
        yield f"phase {curve.phase}: steps {points[0].step} to {points[-1].step}"
        yield f"first {points[0].last:.5g}, last {points[-1].last:.5g}, lowest {lowest.low:.5g}"
    if curve.restarts:
        newest = ", ".join(map(str, curve.restarts[-_NEWEST:]))
        yield f"other attempts went on from step {newest}"
    if curve.not_finite:
        yield f"{count(curve.not_finite, 'loss')} NaN or Inf"
    yield from map(spike_in_words, curve.spikes)
    if curve.spikes and curve.replay:
        yield f"to look into one: {curve.replay}"
    if curve.data_wait is not None:
        yield use_in_words(curve.data_wait, curve.mfu)


def _rungs(report: Report) -> Iterator[str]:
    if not report.rungs:
        yield "the number of devices is not in the journal: the config does not name it"
    for each in report.rungs[-_NEWEST:]:
        yield f"{_when(each.time)}: {count(each.num_devices, 'device')}"


def _checkpoints(report: Report) -> Iterator[str]:
    if not report.commits:
        yield "none was seen committed"
        return
    median, longest = time_between_commits(report)
    newest = report.commits[-1]
    yield f"{count(len(report.commits), 'checkpoint')}; the newest is of step {newest.step}"
    yield f"time between two: {duration(median)} (median), {duration(longest)} (longest)"
    if (now := age_now(report)) is not None:
        yield f"the newest is {duration(now)} old"


def _left_out(number: int, what: str) -> Iterator[str]:
    if number > _NEWEST:
        yield f"the newest {_NEWEST} of {count(number, what)}; --json has them all"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
