"""How often each rule was right about the failures that the rules are developed with.

    python -m tests.corpus.precision

writes docs/reference/verdicts.md: no number there is typed by hand. The development sets flatter
the rules, which were written with them in view; so a rule's precision here is what it cannot exceed
elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.diagnosis.rules import RULES
from tests.corpus.cases import DEVELOPMENT, Judged, judged_file

PUBLISHED = Path(__file__).parents[2] / "docs" / "reference" / "verdicts.md"
_BEGIN, _END = "<!-- precision -->\n", "<!-- end -->\n"


@dataclass(frozen=True, slots=True)
class Precision:
    """What one rule decided, and how often it was right."""

    rule: str
    verdict: str
    cases: int
    right: int
    certain: int
    """Cases of which it was certain."""
    certain_right: int


def development() -> list[Judged]:
    """All development sets, judged."""
    return [item for path in DEVELOPMENT for item in judged_file(path)]


def precision(found: Iterable[Judged]) -> list[Precision]:
    """The precision of each rule that decided about any, in the order of the rules.

    A failure of several ranks counts once.
    """
    incidents = {item.case.incident or item.case.id: item for item in found}
    by_rule: dict[str, list[Judged]] = defaultdict(list)
    for item in incidents.values():
        by_rule[item.failure.rule].append(item)
    places = {rule.name: place for place, rule in enumerate(RULES)}
    names = sorted(by_rule, key=lambda name: places.get(name, len(places)))
    return [_of_rule(name, by_rule[name]) for name in names]


def _of_rule(name: str, found: Sequence[Judged]) -> Precision:
    certain = [item for item in found if item.failure.is_certain]
    return Precision(
        name,
        str(found[0].failure.verdict),
        len(found),
        sum(item.right for item in found),
        len(certain),
        sum(item.right for item in certain),
    )


def sums(found: Sequence[Precision]) -> Iterator[Precision]:
    """The precision of each verdict."""
    for verdict in ("FATAL", "RESTART", "POLICY"):
        rows = [row for row in found if row.verdict == verdict]
        yield Precision(
            "all",
            verdict,
            sum(row.cases for row in rows),
            sum(row.right for row in rows),
            sum(row.certain for row in rows),
            sum(row.certain_right for row in rows),
        )


def table(found: Sequence[Precision]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield "| rule | verdict | right | of these certain: right |"
    yield "| --- | --- | --- | --- |"
    for row in (*sums(found), *found):
        certain = f"{row.certain_right} of {row.certain}" if row.certain else ""
        name = row.rule if row.rule == "all" else f"`{row.rule}`"
        yield f"| {name} | {row.verdict} | {row.right} of {row.cases} | {certain} |"


def rewritten(text: str, found: Iterable[Judged]) -> str:
    """`text` with the table of what was `found`."""
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    lines = "".join(f"{line}\n" for line in table(precision(found)))
    return f"{head}{begin}{lines}{end}{tail}"


if __name__ == "__main__":
    published = PUBLISHED.read_text(encoding="utf-8")
    PUBLISHED.write_text(rewritten(published, development()), encoding="utf-8")
