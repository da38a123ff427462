"""Which parts of a host to look at by themselves, and what that comes to. Pure.

A TPU is initialised whole: one chip that is stuck keeps a process from all that it was shown. And
nothing documents which chip is the i-th device that JAX shows. So where a look at several units
goes wrong, its halves are looked at, each in a process that sees nothing else, down to single
units: a unit is bad if a process that saw it alone says so, and never by its place among others.
Halves of an aligned run are aligned, as is what a smaller rung can be placed on. The larger part
comes first, and later starts get less time than the first one: chips that are stuck should not use
up the time for all looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from supervisor.core.events import BadUnit

Part = tuple[str, ...]
_LEAST = 20.0
"""Seconds that each start may take: libraries are imported anew, beside a loaded machine too."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one part. `problem` None: all of its units are well."""

    problem: str | None = None
    found: bool = False
    """Whether something computed there: else a problem tells only that the part is not to be had
    now, as a busy chip is not."""
    start: float | None = None
    """Seconds after which its backend was up; None: it never was."""


def runs(units: Sequence[str], wanted: Sequence[str]) -> tuple[Part, ...]:
    """The parts to begin with: all of `units`, or the largest aligned runs of those `wanted`."""
    if set(units) <= set(wanted):
        return (tuple(units),)
    found: list[Part] = []
    at = 0
    while at < len(units):
        part = _largest(units, wanted, at)
        if part:
            found.append(part)
        at += len(part) or 1
    return tuple(found)


def _largest(units: Sequence[str], wanted: Sequence[str], at: int) -> Part:
    size = 1 << (len(units).bit_length() - 1)
    while size and not (
        at % size == 0 and at + size <= len(units) and set(units[at : at + size]) <= set(wanted)
    ):
        size //= 2
    return tuple(units[at : at + size])


def next_part(begin: Sequence[Part], tried: Mapping[Part, Tried]) -> Part | None:
    """The part to look at next, a largest one; None: all is known."""
    left = (part for run in begin for part in _left(run, tried))
    return max(left, key=len, default=None)


def patience(tried: Mapping[Part, Tried], first: float) -> float:
    """Seconds for which the next part may start up, where the `first` one may take so many: half of
    them, and once another part has come up, twice as long as that took."""
    if not tried:
        return first
    took = [one.start for one in tried.values() if one.start is not None]
    return min(first / 2, max(_LEAST, 2 * max(took))) if took else first / 2


def _left(part: Part, tried: Mapping[Part, Tried]) -> Iterator[Part]:
    if part not in tried:
        yield part
    elif tried[part].problem is not None and len(part) > 1:
        half = len(part) // 2
        yield from _left(part[:half], tried)
        yield from _left(part[half:], tried)


def well(tried: Mapping[Part, Tried]) -> frozenset[str]:
    """The units of all parts that are well."""
    return frozenset(unit for part, one in tried.items() if one.problem is None for unit in part)


def faults(units: Sequence[str], tried: Mapping[Part, Tried]) -> tuple[BadUnit, ...]:
    """Those of `units` that are not known to be well, each with the reason."""
    found, good = [], well(tried)
    for unit in units:
        if unit not in good:
            alone = tried.get((unit,), Tried("not looked at by itself: there was no time left"))
            found.append(BadUnit(unit, alone.problem or "", found=alone.found))
    return tuple(found)
