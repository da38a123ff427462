"""Renders the report as one HTML page that needs nothing else: no network, no other file.

All that comes from the job is escaped here, and set as text by the page's script. The page runs
only the two scripts whose hashes are in its Content-Security-Policy.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from supervisor import __version__
from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import Status
from supervisor.goodput.wall_time import GOOGLE_NAMES, Part
from supervisor.narrative.durations import duration
from supervisor.narrative.event_line import count
from supervisor.narrative.findings import spike_in_words, use_in_words
from supervisor.protocol.messages import printable
from supervisor.report.job_report import Attempt, FailedAttempt, LossCurve, Report
from supervisor.report.page_data import SYMBOLS, lanes_of, page_data
from supervisor.report.summaries import (
    Kind,
    PartTimes,
    age_now,
    kinds_of,
    lane_seconds,
    part_times,
    time_between_commits,
)

_MOST_FAILURES = 100
"""Failures that are shown with all their evidence: the newest ones."""
_MOST_LISTED = 20
"""Of these failures, the newest ones are in the list; the others are below them, closed. A longer
table is not printed."""
_MOST_ROWS = 300
"""Rows of the table of attempts: the newest ones."""
_NO_LEDGER = "not known: its ledger is not in the journal"
_STEPS_IN_JOURNAL = "at changes of stage, at checkpoints and at ends of attempts"
_ZOOMS = (
    ("in", "+", "Zoom in"),
    ("out", "\N{MINUS SIGN}", "Zoom out"),
    ("left", "←", "Earlier"),
    ("right", "→", "Later"),
    ("all", "All", "Show all of the time"),
)


def html_of(report: Report) -> str:
    """Returns the page."""
    styles, scripts = [_asset(_UPLOT_CSS), _asset("page.css")], [_uplot(), _asset("page.js")]
    return Template(_asset("page.html")).substitute(
        title=_text(f"job {report.head.job}: {report.head.status}"),
        style_hashes=" ".join(map(_hash, styles)),
        script_hashes=" ".join(map(_hash, scripts)),
        uplot_css=styles[0],
        css=styles[1],
        uplot_js=scripts[0],
        js=scripts[1],
        body="\n".join(_body(report)),
        data=_json(page_data(report)),
        made=_when(report.head.made),
        version=_text(__version__),
    )


_UPLOT_CSS = "uplot/uPlot.min.css"


@cache
def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _uplot() -> str:
    """Returns the library with its licence, which every copy must have."""
    return f"/*!\n{_asset('uplot/LICENSE')}*/\n{_asset('uplot/uPlot.iife.min.js')}"


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _json(value: object) -> str:
    """Returns JSON that may stand in a script element: nothing in it ends that element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(text: object) -> str:
    return escape(printable(str(text)))


def _when(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"


# --- the sections ---------------------------------------------------------------------------------


def _body(report: Report) -> Iterator[str]:
    sections = {
        "timeline": ("Attempts and stages", _timeline(report)),
        "failures": ("Failures", _failures(report)),
        "recoveries": ("Recoveries", _recoveries(report)),
        "goodput": ("Goodput by cause", _goodput(report)),
        "progress": ("Steps", _progress(report)),
        "loss": ("Loss", _losses(report)),
        "rungs": ("Rungs", _rungs(report)),
        "checkpoints": ("Age of checkpoints", _checkpoints(report)),
    }
    yield "<header>"
    yield from _head(report)
    links = (f'<li><a href="#{name}">{title}</a></li>' for name, (title, _) in sections.items())
    yield f'<nav aria-label="Sections"><ul>{"".join(links)}</ul></nav>'
    yield "</header><main>"
    yield '<div class="zoom" role="group" aria-label="Time range of the charts">'
    for name, sign, label in _ZOOMS:
        yield f'<button type="button" data-zoom="{name}" aria-label="{label}">{sign}</button>'
    yield '<span class="quiet">time range of the charts; with a mouse, drag in one</span></div>'
    for name, (title, lines) in sections.items():
        yield f'<section id="{name}" aria-labelledby="{name}-title">'
        yield f'<h2 id="{name}-title">{title}</h2>'
        yield from lines
        yield "</section>"
    yield "</main>"


def _head(report: Report) -> Iterator[str]:
    head = report.head
    yield f"<h1>Job {_text(head.job)}</h1>"
    yield f'<p class="quiet">{_text(head.model_dir)}</p>'
    succeeded, failed = head.status == Status.SUCCEEDED, head.status == Status.FAILED
    look, sign = ("good", "✓ ") if succeeded else ("bad", "✕ ") if failed else ("", "")
    yield f'<p class="state {look}">{sign}{_text(head.standing)}</p>'
    yield from _facts(
        ("exit code", _exit_code(head.exit_code)),
        ("ended because", head.ended_because),
        ("supervisor", head.supervisor or ("" if head.exit_code is not None else "none runs here")),
        ("cause", head.cause),
        ("what to do", head.advice),
        ("more", f"supervise rules {head.code}" if head.code else ""),
        ("goodput", head.goodput.removeprefix("goodput ") or _NO_LEDGER),
        ("not all is known", report.missing),
    )


def _exit_code(code: int | None) -> str:
    return "" if code is None else f"{code} ({ExitCode(code).name.replace('_', ' ').lower()})"


def _facts(*facts: tuple[str, object]) -> Iterator[str]:
    """Yields a list of names and values, without the empty ones."""
    told = (
        f"<dt>{name}</dt><dd>{_text(value)}</dd>"
        for name, value in facts
        if value not in ("", None)
    )
    yield f'<dl class="facts">{"".join(told)}</dl>'


def _chart(name: str, label: str) -> str:
    return f'<div class="chart" id="{name}-chart" role="img" aria-label="{escape(label)}"></div>'


def _timeline(report: Report) -> Iterator[str]:
    num = count(len(report.attempts), "attempt")
    yield _chart("timeline", f"timeline of {num}; the tables below have the numbers")
    yield '<p class="readout" id="timeline-readout" aria-live="polite"></p>'
    ends = ", ".join(f"{symbol} {end.lower().replace('_', ' ')}" for end, symbol in SYMBOLS.items())
    yield f'<p class="quiet">Ends of attempts: {ends}.</p>'
    seconds, whole = lane_seconds(report), (report.until - report.began) or 1.0
    rows = [
        (lane.value, duration(seconds[lane]), f"{seconds[lane] / whole:.1%}")
        for lane in lanes_of(report)
    ]
    yield from _details(
        "Time in each lane",
        _table("of the whole time", ("lane", "time", "share"), rows, numbers=(1, 2)),
    )
    is_long = len(report.attempts) > _MOST_LISTED
    yield from _details(f"Table of the {num}", _attempts(report), is_long=is_long)


def _attempts(report: Report) -> Iterator[str]:
    newest = report.attempts[-_MOST_ROWS:]
    yield from _left_out(len(report.attempts) - len(newest), "attempts")
    several = len({each.phase for each in newest}) > 1
    names = ("attempt", "started", "time", "end", "code", "devices", "steps")
    rows = [_attempt(each, report, several=several) for each in reversed(newest)]
    yield from _table("the newest first", names, rows, numbers=(0, 2, 5))


def _attempt(each: Attempt, report: Report, *, several: bool) -> tuple[object, ...]:
    ended = each.ended if each.ended is not None else report.until
    end = each.end.lower().replace("_", " ")
    first = "?" if each.first_step is None else each.first_step
    steps = "" if each.last_step is None else f"{first} → {each.last_step}"
    return (
        each.number,
        _when(each.started),
        duration(max(0.0, ended - each.started)),
        f"{end} (phase {each.phase})" if several else end,
        each.code or "",
        "" if each.num_devices is None else each.num_devices,
        steps,
    )


def _failures(report: Report) -> Iterator[str]:
    if not report.failures:
        yield "<p>No attempt has failed.</p>"
        return
    kinds = kinds_of(report.failures)
    if len(report.failures) > 1:
        rows = [_kind(each) for each in kinds]
        names = ("code", "verdict", "failed attempts", "first", "last", "cause")
        yield from _table("Failures by code", names, rows, numbers=(2,))
    newest = report.failures[-_MOST_FAILURES:]
    yield "<h3>Each failure, the newest first</h3>"
    yield from _left_out(len(report.failures) - len(newest), "failures")
    for number, each in enumerate(reversed(newest[-_MOST_LISTED:])):
        yield from _failure(each, report, is_open=number == 0)
    if older := newest[:-_MOST_LISTED]:
        lines = (line for each in reversed(older) for line in _failure(each, report))
        yield from _details(count(len(older), "older failure"), lines, is_long=True)


def _kind(kind: Kind) -> tuple[object, ...]:
    return kind.code, kind.verdict, kind.times, _when(kind.first), _when(kind.last), kind.cause


def _failure(it: FailedAttempt, report: Report, *, is_open: bool = False) -> Iterator[str]:
    verdict = f"{it.verdict}, certain" if it.certain else it.verdict
    yield f"<details{' open' if is_open else ''}><summary>Attempt {it.attempt}: {_text(it.cause)}"
    yield f' <code>{_text(it.code)}</code> <span class="verdict">{_text(verdict)}</span></summary>'
    yield "<div>"
    yield from _facts(
        ("root cause", it.root_cause),
        ("at", it.place),
        ("time", _when(it.time)),
        ("ranks", "; ".join(it.exits)),
        ("last stage", it.stage or "none was reported"),
        ("last step", "none was reported" if it.step is None else it.step),
        ("newest checkpoint", "none" if it.committed is None else f"step {it.committed}"),
        ("why this verdict", it.reason),
        ("restarts", it.restarts),
        ("decision", it.decision),
        ("because", it.decided_because),
        ("what to do", it.advice),
        ("files", it.files),
        ("more", f"supervise explain {report.head.model_dir} {it.attempt}"),
    )
    if it.traceback:
        lines = "\n".join(map(_text, it.traceback))
        yield f'<pre tabindex="0">{lines}</pre>'
    yield "</div></details>"


def _recoveries(report: Report) -> Iterator[str]:
    if not report.recoveries:
        yield "<p>No recovery is recorded: nothing has completed a step after a failure.</p>"
        return
    yield _chart(
        "recoveries", "recovery time of each attempt, by its parts; the table has the sums"
    )
    rows = [_part(each) for each in part_times(report.recoveries)]
    names = ("part", "recoveries", "median", "90%", "longest", "together")
    num = count(len(report.recoveries), "recovery").replace("recoverys", "recoveries")
    caption = f"{num}, from a worker's death to the next completed step"
    yield from _table(caption, names, rows, numbers=(1, 2, 3, 4, 5))
    known = [each.lost_steps for each in report.recoveries if each.lost_steps is not None]
    if known:
        yield f"<p>Steps that were run again: {sum(known)} in all.</p>"


def _part(part: PartTimes) -> tuple[object, ...]:
    times = (part.median, part.ninth_decile, part.longest, part.total)
    return part.name, part.times, *map(duration, times)


def _goodput(report: Report) -> Iterator[str]:
    told = report.goodput
    if told is None or not told["seconds"]:
        yield "<p>Not known: the journal does not have it, or no time has passed.</p>"
        return
    whole = told["seconds"]
    yield '<p class="quiet">Where the time went in which a supervisor ran</p>'
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Goodput by cause">'
    yield '<table class="facts">'
    yield "<thead><tr>" + "".join(
        f'<th scope="col"{kind}>{name}</th>'
        for name, kind in (
            ("part", ""),
            ("time", ' class="number"'),
            ("share", ' class="number"'),
            ("", ""),
            ("name in ml-goodput-measurement", ""),
        )
    )
    yield "</tr></thead><tbody>"
    for part, seconds in sorted(told["parts"].items(), key=lambda each: -each[1]):
        share = seconds / whole
        kept = " kept" if part == Part.PRODUCTIVE else ""
        google = GOOGLE_NAMES.get(Part(part), "productive time")
        bar = f'<rect class="bar{kept}" width="{120 * share:.1f}" height="12"/>'
        yield (
            f'<tr><th scope="row">{_text(part.replace("_", " "))}</th>'
            f'<td class="number">{duration(seconds)}</td><td class="number">{share:.1%}</td>'
            f'<td><svg width="120" height="12" aria-hidden="true">'
            f'<rect class="track" width="120" height="12"/>{bar}</svg></td>'
            f'<td class="quiet">{google}</td></tr>'
        )
    yield "</tbody></table></div>"
    if told["not_running"]:
        away = duration(told["not_running"])
        yield f"<p>No supervisor ran for {away} between runs; that is no part of the shares.</p>"


def _progress(report: Report) -> Iterator[str]:
    if not report.steps and not report.commits:
        yield f"<p>The journal has no steps yet: it gets them {_STEPS_IN_JOURNAL}.</p>"
        return
    yield _chart("progress", "the last completed step over time, and committed checkpoints")
    yield (
        f'<p class="quiet">The journal has steps {_STEPS_IN_JOURNAL}. '
        "A dashed line: another attempt starts.</p>"
    )


def _losses(report: Report) -> Iterator[str]:
    if report.no_losses:
        yield f"<p>{'' if report.losses else 'No losses: '}{_text(report.no_losses)}.</p>"
    for number, each in enumerate(report.losses):
        yield from _loss(number, each, several=len(report.losses) > 1)


def _loss(number: int, curve: LossCurve, *, several: bool) -> Iterator[str]:
    if several:
        yield f"<h3>Phase {_text(curve.phase)}</h3>"
    label = "loss over steps, with a dashed line where another attempt went on"
    yield _chart(f"loss-{number}", label)
    if curve.points:
        first, last = curve.points[0], curve.points[-1]
        told = f"From {first.last:.5g} at step {first.step} to {last.last:.5g} at step {last.step}"
        yield f"<p>{told}. A dashed line: another attempt goes on from that step.</p>"
    if curve.not_finite:
        yield f"<p>{count(curve.not_finite, 'loss')} NaN or Inf: not drawn.</p>"
    if curve.spikes:
        yield "<p>Losses that stand out:</p><ul>"
        yield from (f"<li>{_text(spike_in_words(each))}</li>" for each in curve.spikes)
        yield "</ul>"
    if curve.spikes and curve.replay:
        yield f"<p>To look into one: <code>{_text(curve.replay)}</code></p>"
    if curve.data_wait is not None:
        how = use_in_words(curve.data_wait, curve.mfu)
        yield f"<p>Training {how} (medians).</p>"


def _rungs(report: Report) -> Iterator[str]:
    if not report.rungs:
        yield "<p>The number of devices is not in the journal: the config does not name it.</p>"
        return
    rungs = report.rungs
    if len(rungs) == 1:
        yield f"<p>Every attempt ran on {count(rungs[0].num_devices, 'device')}.</p>"
        return
    yield _chart("rungs", "the number of devices over time; the table below has the numbers")
    rows = [(_when(each.time), each.num_devices) for each in rungs[-_MOST_ROWS:]]
    table = _table("the newest first", ("since", "devices"), rows[::-1], numbers=(1,))
    yield from _details(count(len(rungs) - 1, "change"), table, is_long=len(rungs) > _MOST_LISTED)


def _checkpoints(report: Report) -> Iterator[str]:
    commits = report.commits
    if not commits:
        yield "<p>No checkpoint was seen committed.</p>"
        return
    median, longest = time_between_commits(report)
    newest, now = commits[-1], age_now(report)
    age = "" if now is None else f" and is {duration(now)} old"
    yield (
        f"<p>{count(len(commits), 'checkpoint')}. Time between two: {duration(median)} (median), "
        f"{duration(longest)} (longest). The newest one has step {newest.step} and was "
        f"committed at {_when(newest.time)}{age}.</p>"
    )
    yield _chart("ages", "age of the newest checkpoint over time: what a failure would cost")
    rows = [(each.step, _when(each.time), duration(each.age)) for each in commits[-_MOST_ROWS:]]
    names = ("step", "committed", "since the one before")
    table = _table("the newest first", names, rows[::-1], numbers=(0, 2))
    yield from _details("Table of checkpoints", table, is_long=len(commits) > _MOST_LISTED)


# --- parts ----------------------------------------------------------------------------------------


def _left_out(number: int, what: str) -> Iterator[str]:
    if number > 0:
        yield f"<p>{number} older {what} are left out here; <code>supervise report --json</code> "
        yield "has them all.</p>"


def _details(summary: str, lines: Iterator[str], *, is_long: bool = False) -> Iterator[str]:
    """Yields lines that are closed at first, and are printed unless they are long."""
    yield f"<details{' data-long' if is_long else ''}><summary>{_text(summary)}</summary><div>"
    yield from lines
    yield "</div></details>"


def _table(
    caption: str,
    names: Sequence[str],
    rows: Sequence[Sequence[object]],
    numbers: Sequence[int] = (),
) -> Iterator[str]:
    """Yields a table whose first column heads its row; `numbers` are columns of numbers."""
    kinds = [' class="number"' if place in numbers else "" for place in range(len(names))]
    yield f'<p class="quiet">{_text(caption)}</p>'
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(caption)}">'
    yield '<table class="facts">'
    heads = (f'<th scope="col"{k}>{_text(n)}</th>' for n, k in zip(names, kinds, strict=True))
    yield f"<thead><tr>{''.join(heads)}</tr></thead><tbody>"
    for first, *others in rows:
        cells = (f"<td{k}>{_text(v)}</td>" for v, k in zip(others, kinds[1:], strict=True))
        yield f'<tr><th scope="row"{kinds[0]}>{_text(first)}</th>{"".join(cells)}</tr>'
    yield "</tbody></table></div>"
