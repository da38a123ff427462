"""Renders the storm as a table for people and as JSON for tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.chaos.checks import Check
from tests.chaos.storm import Outcome

_COLUMNS = (
    ("#", 3),
    ("at s", 6),
    ("step", 5),
    ("fault", 36),
    ("noticed", 27),
    ("after", 6),
    ("step in", 7),
    ("then", 22),
)


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines of the table, of at most 120 columns; longer cells are folded."""
    yield from _row([name for name, _ in _COLUMNS])
    yield " ".join("-" * width for _, width in _COLUMNS)
    for number, one in enumerate(outcomes, start=1):
        yield from _row(
            [
                str(number),
                _seconds(one.at),
                "-" if one.step is None else str(one.step),
                one.fault.name,
                one.noticed,
                _seconds(one.noticed_after),
                _seconds(one.next_step_after),
                one.problem.upper() or one.then,
            ]
        )


def summary(
    outcomes: Sequence[Outcome], checks: Sequence[Check], skipped: Sequence[str]
) -> Iterator[str]:
    """Yield how many faults of how many kinds struck, how long they took, and which claims hold."""
    kinds = {one.fault.name for one in outcomes if one.at is not None}
    struck = sum(one.at is not None for one in outcomes)
    yield f"{struck} faults of {len(kinds)} kinds struck; {len(skipped)} kinds SKIPPED."
    for kind in skipped:
        yield f"SKIPPED  {kind}"
    timed = sorted(one.next_step_after for one in outcomes if one.next_step_after is not None)
    if timed:
        middle = timed[len(timed) // 2]
        yield f"From a fault to the next step: median {middle:.2f} s, longest {timed[-1]:.2f} s."
    for check in checks:
        yield f"{'ok  ' if check.holds else 'FAIL'}  {check.claim}"
        if not check.holds:
            yield f"      {check.against}"


def as_json(
    outcomes: Sequence[Outcome], checks: Sequence[Check], skipped: Sequence[str]
) -> dict[str, Any]:
    """Return the same for tools. Durations are in seconds."""
    return {
        "faults": [
            {
                "at": one.at,
                "step": one.step,
                "fault": one.fault.name,
                "group": one.fault.group,
                "noticed": one.noticed,
                "noticed_after": one.noticed_after,
                "next_step_after": one.next_step_after,
                "then": one.then,
                "problem": one.problem,
            }
            for one in outcomes
        ],
        "checks": [
            {"claim": check.claim, "holds": check.holds, "against": check.against}
            for check in checks
        ],
        "skipped": list(skipped),
    }


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _row(cells: Sequence[str]) -> Iterator[str]:
    rest = list(cells)
    while any(rest):
        line = []
        for index, (_, width) in enumerate(_COLUMNS):
            part, rest[index] = _fold(rest[index], width)
            line.append(part.ljust(width))
        yield " ".join(line).rstrip()


def _fold(text: str, width: int) -> tuple[str, str]:
    """Return the part of `text` that fits into `width`, cut at a space if there is one, and the
    rest."""
    if len(text) <= width:
        return text, ""
    cut = text.rfind(" ", 1, width + 1)
    return (text[:cut], text[cut + 1 :]) if cut > 0 else (text[:width], text[width:])
