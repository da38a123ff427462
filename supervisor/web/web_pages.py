"""The pages of `supervise serve`: all jobs on one, and one for each job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from supervisor.narrative.durations import duration
from supervisor.narrative.failure_text import place_of_failure
from supervisor.narrative.pace import LONG_AGO
from supervisor.narrative.standing import standing_line
from supervisor.protocol.messages import printable
from supervisor.web.bounded_server import Answer
from supervisor.web.job_facts import JobFacts, Seen, Unreadable

HTML = "text/html; charset=utf-8"
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: light-dark(#555, #aaa); }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 70rem; }
h1 { font-size: 1.2rem; }
table { border-collapse: collapse; width: 100%; }
th { color: var(--dim); font-weight: normal; text-align: left; }
th, td { border-bottom: 1px solid var(--line); padding: .5rem .75rem .5rem 0; vertical-align: top; }
td { overflow-wrap: anywhere; }
td.name { min-width: 9rem; }
td.number { white-space: nowrap; }
small { color: var(--dim); display: block; }
.good { color: light-dark(#17692b, #6fd08c); }
.bad { color: light-dark(#a3171b, #ff8f8a); }
footer { color: var(--dim); margin-top: 1.5rem; }
@media (max-width: 40rem) {
  thead { display: none; }
  tr { border-bottom: 1px solid var(--line); display: block; padding: .5rem 0; }
  td { border: 0; display: flex; gap: .75rem; padding: .1rem 0; }
  td::before { color: var(--dim); content: attr(data-name); flex: 0 0 5.5rem; }
  td.name { font-size: 1.1rem; } td.name::before { content: none; }
  td.number { white-space: normal; }
}
"""
_LOST = (
    '<p id="lost" class="state bad" role="status" hidden>The server does not answer: this may be '
    "old.</p>"
)
_COLUMNS = ("job", "state", "step", "goodput", "supervisor", "last failure")
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">\n?')
"""What a report allows itself: its own scripts and styles, by their hashes."""
_ALSO = "; connect-src 'self'; frame-ancestors 'none'"


@dataclass(frozen=True, slots=True)
class Version:
    """Which state of the server a page shows."""

    changes: int
    records: str = "-"
    """The last record of the journal that is in a report; `-`: the page is no report."""

    def __str__(self) -> str:
        return f"{self.changes} {self.records}"


def overview(jobs: Sequence[tuple[str, Seen | None]], now: float, version: Version) -> str:
    """Returns the page with all jobs, each with its name and what was seen last of it."""
    rows = "".join(_row(number, name, seen, now) for number, (name, seen) in enumerate(jobs, 1))
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    count = f"{len(jobs)} job{'s' * (len(jobs) != 1)}"
    body = (
        f"<h1>{count}</h1><table><thead><tr>{head}</tr></thead>"
        f'<tbody id="jobs" data-live>{rows}</tbody></table>'
        '<footer>Read from the files of the jobs. <a href="/metrics">Metrics for Prometheus</a>'
        "</footer>"
    )
    return _page(f"supervise: {count}", body, _script("/", version))


def live_report(report: str, number: int, it: JobFacts, now: float, version: Version) -> Answer:
    """Returns the page with the report of the job with this number, kept up to date: `report` is
    the page of `supervise report`."""
    policy = _POLICY.search(report)
    assert policy is not None, "a report says which scripts it runs"
    allowed = policy[1].replace("script-src ", "script-src 'self' ") + _ALSO
    base = f"/job/{number}/"
    script = _script(base, version)
    top = f'<p><a href="/">All jobs</a></p>{_LOST}{live_part(it, now)}'
    html = _POLICY.sub("", report, count=1)
    html = html.replace("</head>", f"{script}</head>", 1).replace("<body>", f"<body>{top}", 1)
    return Answer(html, HTML, headers={"Content-Security-Policy": allowed})


def unreadable(name: str, number: int, why: str, version: Version) -> str:
    """Returns the page of a job that cannot be shown."""
    body = f'<p><a href="/">All jobs</a></p><h1>{_text(name)}</h1><p class="bad">{_text(why)}</p>'
    return _page(f"{name}: cannot be read", body, _script(f"/job/{number}/", version))


def _script(base: str, version: Version) -> str:
    """Returns the tag of the script that keeps a page up to date."""
    live = base if base == "/" else f"{base}live"
    return (
        f'<script src="/live.js" data-changes="{version.changes}" '
        f'data-records="{version.records}" data-live="{live}" data-events="{base}events" defer>'
        "</script>"
    )


def _page(title: str, body: str, script: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style>{script}</head>"
        f"<body>{_LOST}{body}</body></html>\n"
    )


def live_part(it: JobFacts, now: float) -> str:
    """Returns what of the page of a job changes all the time."""
    parts = _progress(it, now) if not it.has_ended else []
    if it.live.loss is not None and parts:
        parts.append(f"loss {it.live.loss:.5g}")
    if it.live.loss_not_finite and parts:
        parts.append("loss NaN or Inf")
    share = it.goodput(now)
    if parts and share is not None and share.share is not None:
        parts.append(f"goodput {share.share:.1%}")
    told = f"Now: {it.stage or it.standing.status}, step {', '.join(parts)}" if parts else ""
    still = f'<span class="bad"> The supervisor: {_text(it.standstill)}</span>'
    return f'<p id="live" data-live>{_text(told)}{still if it.standstill else ""}</p>'


def _row(number: int, name: str, seen: Seen | None, now: float) -> str:
    link = f'<a href="/job/{number}/">{_text(name)}</a>'
    cells = [_cell("job", "name", link)]
    match seen:
        case None:
            cells.append(_cell("state", "", "not looked at yet"))
        case Unreadable(why):
            cells.append(_cell("state", "bad", f"cannot be read<small>{_text(why)}</small>"))
        case JobFacts():
            cells += _cells(seen, now)
    missing = len(_COLUMNS) - len(cells)
    span = cells.pop().replace("<td", f'<td colspan="{missing + 1}"', 1) if missing else cells.pop()
    return f"<tr>{''.join([*cells, span])}</tr>"


def _cells(it: JobFacts, now: float) -> Iterator[str]:
    status = str(it.standing.status)
    is_bad = bool(it.needs_a_person) or not (it.is_supervised or it.has_ended)
    is_good = it.has_ended and it.state.exit_code == 0
    now_in = replace(it.standing, stage=it.stage)
    told = standing_line(now_in).removeprefix(f"{status}: ")
    if it.has_ended:
        told = f"exit code {it.state.exit_code:d}; {told}"
    elif not it.is_supervised:
        told = f"last known: {told}"
    look = "bad" if is_bad else "good" if is_good else ""
    yield _cell("state", "", f'<b class="{look}">{status}</b><small>{_text(told)}</small>')
    yield _cell("step", "number", _step(it, now))
    goodput = it.goodput(now)
    share = "not known" if goodput is None or goodput.share is None else f"{goodput.share:.1%}"
    wall = "" if goodput is None else f"<small>of {duration(goodput.running)}</small>"
    yield _cell("goodput", "number", share + wall)
    yield _cell("supervisor", "", _supervisor(it))
    yield _cell("last failure", "", _failure(it))


def _step(it: JobFacts, now: float) -> str:
    first, *others = _progress(it, now) or ["none"]
    at = it.tally.committed_at if it.tally is not None else None
    if (highest := it.standing.highest_committed) is not None:
        ago = "" if at is None else f", {duration(max(0.0, now - at))} ago"
        others.append(f"committed: {highest}{ago}")
    return first + "".join(f"<small>{line}</small>" for line in others)


def _progress(it: JobFacts, now: float) -> list[str]:
    """Returns the step, how old it is, the rate and the time left, as far as they are known."""
    if it.step is None:
        return []
    step = str(it.step) if it.target_step is None else f"{it.step} of {it.target_step}"
    at = it.live.step_at if not it.has_ended else None
    age = now - at.timestamp() if at is not None else 0.0
    parts = [f"{step} ({duration(age)} ago)" if age >= LONG_AGO else step]
    if it.live.steps_per_second is not None:
        parts.append(f"{it.live.steps_per_second:.3g} a second")
    if it.live.eta_seconds is not None:
        parts.append(f"{duration(it.live.eta_seconds)} left")
    return parts


def _supervisor(it: JobFacts) -> str:
    if it.owner is None:
        return "none" if it.has_ended else '<span class="bad">none: run the command again</span>'
    process, _, since = it.owner.partition(", since ")
    still = f'<small class="bad">{_text(it.standstill)}</small>' if it.standstill else ""
    when = f"<small>since {_text(since[:19].replace('T', ' '))}</small>" if since else ""
    return f"{_text(process)}{when}{still}"


def _failure(it: JobFacts) -> str:
    if it.failure is None:
        return "none"
    told = f"{it.failure.cause}: {it.failure.root_cause}{place_of_failure(it.failure)}"
    return f"{_text(told)}<small>{it.failure.verdict}, rule {_text(it.failure.rule)}</small>"


def _cell(name: str, look: str, html: str) -> str:
    return f'<td class="{look}" data-name="{name}"><div>{html}</div></td>'


def _text(text: str) -> str:
    return escape(printable(text))
