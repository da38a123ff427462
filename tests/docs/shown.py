"""Compares what a page shows of an output with the output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:\+\d\d:?\d\d)?"
_VERSION = r"\d+\.\d+\.\d+\+(?:[0-9a-f]{8}|\.\.\.)"
_VARIES = {
    "time": (_TIME, _TIME),
    "folder": (r"\d{8}_\d{6}(?=_restartable)", r"\d{8}_\d{6}"),
    "job": (r"(?<=\bjob )[0-9a-f]{12}", r"[0-9a-f]{12}"),
    "version": (_VERSION, r"\d+\.\d+\.\d+\+[0-9a-f]{8}"),
    "pid": (
        r"(?<=\bpid )\d+(?:, \d+)*|(?<=supervisor )\d+(?= on )|(?<=-TERM )\d+",
        r"\d+(?:, \d+)*",
    ),
    "host": (r"(?<= on )\S+(?=, since )", r"\S+"),
    "sum": (r"(?<=damaged-)[0-9a-f]{8}", r"[0-9a-f]{8}"),
    "address": (r"\b0x[0-9a-f]+", r"0x[0-9a-f]+"),
    "port": (r"\b127\.0\.0\.1:\d+", r"127\.0\.0\.1:\d+"),
    "library": (r'"\S*/python3\.\d+/\w+\.py", line \d+', r'"\S*/python3\.\d+/\w+\.py", line \d+'),
    "fraction": (r"(?<![\w.])\d+\.\d+(?![\w.]*\.\d)", r"\d+\.\d+"),
    "any": (r"\.\.\.", r".*"),
}
"""What is of one run: how a page shows it, and what it may be."""
_STEP = r"(?:(?<=\bstep )|(?<=\bsteps )|(?<=\bstep: )|(?<=\btotal ))\d+(?!\d*\.\d)"
_NUMBERS = {"step": r"\d+", "steps": r"\d+ steps?"}
_PARTS = re.compile("|".join(f"(?P<{name}>{shown})" for name, (shown, _) in _VARIES.items()))
_PARTS_WITH_STEPS = re.compile(rf"(?P<step>{_STEP})|(?P<steps>\b\d+ steps?\b)|{_PARTS.pattern}")
_CLOCK = re.compile(rf"^(?:{_TIME}|\.\.\.) (?=\[(?:main|attempt \d+)\] )")
_COMMIT = re.compile(r"\[attempt \d+\] checkpoint of step \d+ (?:is|was) committed")
_OURS = re.compile(r"\[(?:main|attempt \d+)\] ")


@dataclass(frozen=True)
class _Line:
    """A line that is shown; None stands for any lines."""

    pattern: re.Pattern[str] | None
    shown: str
    repeats: bool
    """Whether several lines like it may stand in its place."""


class Unlike(Exception):  # noqa: N818
    """The output is not what is shown."""


@dataclass(frozen=True)
class Position:
    """How far an output was shown: lines of supervise, and lines of programs."""

    ours: int = 0
    others: int = 0


def compare(
    shown: Sequence[str],
    actual: Sequence[str],
    start: Position | None,
    *,
    whole: bool,
    steps_vary: bool,
) -> Position:
    """Compare an output with what is shown of it; returns how far it was shown.

    `start`: the shown part begins anywhere after this position; None: with the first line.
    `whole`: the shown part goes to the end.

    Raises:
        Unlike: it is something else.
    """
    if steps_vary:
        shown, actual = _without_commits(shown), _without_commits(actual)
    ends = []
    for number, ours in enumerate((True, False)):
        wanted = [_line(each, steps_vary) for each in shown if _is_of(each, ours)]
        found = [_CLOCK.sub("", each) for each in actual if is_ours(each) == ours]
        begin = 0 if start is None else (start.ours, start.others)[number]
        places = {0} if start is None else set(range(begin, len(found) + 1))
        ends.append(_end(_joined(wanted), found, places, whole))
    return Position(*ends)


def is_ours(line: str) -> bool:
    """Whether it is a line of supervise, and not of a program."""
    return bool(_OURS.match(_CLOCK.sub("", line)))


def _is_of(line: str, ours: bool) -> bool:
    return line.strip() == "..." or is_ours(line) == ours


def _without_commits(lines: Sequence[str]) -> list[str]:
    """Leave out what supervise says when it looks and finds a checkpoint: it may look later, and
    find the next one."""
    return [line for line in lines if not _COMMIT.fullmatch(_CLOCK.sub("", line))]


def _line(shown: str, steps_vary: bool) -> _Line:
    if shown.strip() == "...":
        return _Line(None, shown, False)
    pattern, end, repeats = "", 0, False
    text = _CLOCK.sub("", shown)
    for part in (_PARTS_WITH_STEPS if steps_vary else _PARTS).finditer(text):
        kind = part.lastgroup or ""
        pattern += re.escape(text[end : part.start()])
        pattern += _NUMBERS[kind] if kind in _NUMBERS else _VARIES[kind][1]
        repeats |= kind in _NUMBERS
        end = part.end()
    return _Line(re.compile(pattern + re.escape(text[end:])), shown, repeats)


def _joined(lines: Sequence[_Line]) -> list[_Line]:
    """Of neighbours that differ only in numbers of steps, one is enough."""
    kept: list[_Line] = []
    for line in lines:
        if not (line.repeats and kept and kept[-1].pattern == line.pattern):
            kept.append(line)
    return kept


def _end(wanted: Sequence[_Line], found: Sequence[str], places: set[int], whole: bool) -> int:
    """Return where the wanted lines end in those found, if they begin at one of these places."""
    for line in wanted:
        if line.pattern is None:
            places = set(range(min(places), len(found) + 1))
            continue
        after = _after(line.pattern, found, places)
        while line.repeats and (more := _after(line.pattern, found, after) - after):
            after |= more
        if not after:
            at = min(places)
            there = found[at] if at < len(found) else "the end of the output"
            raise Unlike(f"{line.shown}\n  does not come there; what comes is\n{there}")
        places = after
    if whole and len(found) not in places:
        raise Unlike(f"the end is shown, but then comes\n{found[min(places)]}")
    return min(places)


def _after(pattern: re.Pattern[str], found: Sequence[str], places: set[int]) -> set[int]:
    """Return the places behind those whose line matches."""
    return {at + 1 for at in places if at < len(found) and pattern.fullmatch(found[at])}
