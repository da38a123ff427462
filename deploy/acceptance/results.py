"""The results of an acceptance run, for people and for programs.

The report is one Markdown file, which ends with the same data as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from supervisor.protocol.messages import printable

Status = Literal["passed", "failed", "skipped"]

_FENCE = "```"
_SIMULATED = (
    "**SIMULATED DEVICES: this run proves nothing about chips.** It shows only that the checks "
    "themselves work."
)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check."""

    name: str
    status: Status
    expected: str
    source: str
    """The document or code that the expectation comes from."""
    seen: tuple[str, ...] = ()
    why: str = ""
    """Why it failed or was skipped."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run, and the machine it ran on."""

    date: str
    platform: str
    hardware: str
    machine: Mapping[str, str]
    results: tuple[Result, ...] = ()
    interrupted: bool = False
    unfinished: bool = False
    """The run goes on or was cut off: results of further checks are missing."""

    def count(self, status: Status) -> int:
        """Returns how many checks have this status."""
        return sum(result.status == status for result in self.results)

    def flaws(self) -> Iterator[str]:
        """Yields why this is not a complete run on real devices; nothing if it is one."""
        if self.platform == "cpu":
            yield "simulated"
        if self.interrupted:
            yield "interrupted before the end"
        if self.unfinished:
            yield "unfinished: it was cut off, or still runs"

    def to_markdown(self) -> str:
        """Returns the report: text for people, and JSON for programs at its end."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        yield f"# Acceptance run on {self.hardware}, {self.date}"
        yield ""
        if self.platform == "cpu":
            yield from (_SIMULATED, "")
        counts = ", ".join(f"{self.count(s)} {s}" for s in ("passed", "failed", "skipped"))
        yield "; ".join([counts, *self.flaws()])
        yield ""
        yield from _table(("machine", ""), self.machine.items())
        yield ""
        rows = [(r.name, r.status, f"{r.seconds:.1f} s", r.why) for r in self.results]
        yield from _table(("check", "result", "time", "why"), rows)
        for result in self.results:
            yield from ("", f"## {result.name}: {result.status}", "")
            yield f"* Expected: {result.expected}"
            yield f"* Source: {result.source}"
            if result.why:
                yield f"* Why: {result.why}"
            yield from (f"* Seen: {text}" for text in result.seen)
        yield from ("", f"{_FENCE}json", json.dumps(asdict(self)), _FENCE)

    @classmethod
    def from_markdown(cls, text: str) -> Report:
        """Returns the report that `to_markdown` wrote.

        Raises:
            ValueError: `text` is not such a report.
        """
        _, begin, rest = text.rpartition(f"{_FENCE}json\n")
        if not begin:
            raise ValueError("has no JSON at its end: this is no file of an acceptance run")
        try:
            known = json.loads(rest.partition(f"\n{_FENCE}")[0])
            results = tuple(Result(**{**r, "seen": tuple(r["seen"])}) for r in known["results"])
            return cls(**{**known, "machine": dict(known["machine"]), "results": results})
        except (TypeError, KeyError, ValueError, RecursionError) as error:
            raise ValueError(f"its JSON is not that of an acceptance run ({error})") from error


def seen_where(reports: Iterable[Report]) -> str:
    """Returns a Markdown table with one row for each report."""
    head = ("hardware", "date", "jax", "runtime", "passed", "failed", "skipped")
    rows = [
        (
            "; ".join([report.hardware, *report.flaws()]),
            report.date,
            report.machine.get("jax", ""),
            report.machine.get("runtime", ""),
            str(report.count("passed")),
            ", ".join(r.name for r in report.results if r.status == "failed") or "none",
            ", ".join(r.name for r in report.results if r.status == "skipped") or "none",
        )
        for report in reports
    ]
    return "\n".join(_table(head, rows))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(text: object) -> str:
    """Returns `text` on one line, without control characters: the file may come from a
    stranger."""
    return printable(str(text).replace("|", "/").replace("\n", " "))
