"""The pages of `supervise serve`: all jobs on one, and one for each job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape

from supervisor.goodput.goodput_text import duration
from supervisor.narrative.failure_text import place_of_failure
from supervisor.narrative.standing import standing_line
from supervisor.protocol.messages import printable
from supervisor.web.job_facts import JobFacts, Seen, Unreadable

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
#lost { display: none; }
.not-live #lost { display: block; }
@media (max-width: 40rem) {
  thead { display: none; }
  tr { border-bottom: 1px solid var(--line); display: block; padding: .5rem 0; }
  td { border: 0; display: flex; gap: .75rem; padding: .1rem 0; }
  td::before { color: var(--dim); content: attr(data-name); flex: 0 0 5.5rem; }
  td.name { font-size: 1.1rem; } td.name::before { content: none; }
  td.number { white-space: normal; }
}
"""
LOST = '<p id="lost" class="bad" role="status">The server does not answer: this may be old.</p>'
_COLUMNS = ("job", "state", "step", "goodput", "supervisor", "last failure")


def script(changes: int) -> str:
    """Returns the tag of the script that keeps a page up to date, which had so many changes."""
    return f'<script src="/live.js" data-changes="{changes}" defer></script>'


def overview(jobs: Sequence[tuple[str, Seen | None]], now: float, changes: int) -> str:
    """Returns the page with all jobs, each with its name and what was seen last of it."""
    rows = "".join(_row(number, name, seen, now) for number, (name, seen) in enumerate(jobs, 1))
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    count = f"{len(jobs)} job{'s' * (len(jobs) != 1)}"
    body = (
        f"<h1>{count}</h1><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        '<footer>Read from the files of the jobs. <a href="/metrics">Metrics for Prometheus</a>'
        "</footer>"
    )
    return page(f"supervise: {count}", body, changes)


def page(title: str, body: str, changes: int) -> str:
    """Returns a whole page; `body` is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style>{script(changes)}</head>"
        f"<body>{LOST}{body}</body></html>\n"
    )


def unreadable(name: str, why: str, changes: int) -> str:
    """Returns the page of a job that cannot be shown."""
    body = f'<p><a href="/">All jobs</a></p><h1>{_text(name)}</h1><p class="bad">{_text(why)}</p>'
    return page(f"{name}: cannot be read", body, changes)


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
    step = "none" if it.step is None else str(it.step)
    lines = [step if it.target_step is None else f"{step} of {it.target_step}"]
    if it.live.steps_per_second is not None:
        lines.append(f"{it.live.steps_per_second:.3g} a second")
    if it.live.eta_seconds is not None:
        lines.append(f"{duration(it.live.eta_seconds)} left")
    at = it.tally.committed_at if it.tally is not None else None
    if (highest := it.standing.highest_committed) is not None:
        ago = "" if at is None else f", {duration(max(0.0, now - at))} ago"
        lines.append(f"committed: {highest}{ago}")
    return lines[0] + "".join(f"<small>{line}</small>" for line in lines[1:])


def _supervisor(it: JobFacts) -> str:
    if it.owner is None:
        return "none" if it.has_ended else '<span class="bad">none: run the command again</span>'
    still = f'<small class="bad">{_text(it.standstill)}</small>' if it.standstill else ""
    return f"{_text(it.owner)}{still}"


def _failure(it: JobFacts) -> str:
    if it.failure is None:
        return "none"
    told = f"{it.failure.cause}: {it.failure.root_cause}{place_of_failure(it.failure)}"
    return f"{_text(told)}<small>{it.failure.verdict}, rule {_text(it.failure.rule)}</small>"


def _cell(name: str, look: str, html: str) -> str:
    return f'<td class="{look}" data-name="{name}"><div>{html}</div></td>'


def _text(text: str) -> str:
    return escape(printable(text))
