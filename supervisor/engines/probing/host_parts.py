"""Decides which parts of a host to probe separately, and what the results say of its units. Pure.

A TPU backend initialises all chips that a process sees: one stuck chip keeps the process from all
of them. And nothing documents which chip is the i-th device that JAX shows. So if the probe of a
part fails, its halves are probed, each in a process that sees nothing else, down to single units. A
unit is bad if a process that saw only this unit says so, never because of its place among others. A
unit that no process could probe alone in time is reported as not seen (`BadUnit.found`).

The parts are aligned runs of units: a smaller rung is placed on an aligned run, and halves of an
aligned run are aligned too. The larger part comes first, and later processes get less time to start
than the first one. So stuck chips do not use up the time of the whole look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from supervisor.core.events import BadUnit

Part = tuple[str, ...]
_LEAST_START = 20.0
"""Least seconds that each process may take to start. It imports libraries anew, perhaps on a loaded
machine."""


@dataclass(frozen=True, slots=True)
class PartResult:
    """The result for one part."""

    problem: str | None = None
    """What is wrong with a unit of it; None: all its units are healthy."""
    found: bool = False
    """If there is a problem: whether the backend came up and showed the faulty unit. If not, the
    problem may be only that the part is unavailable now, for example because a chip is busy."""
    startup_seconds: float | None = None
    """Seconds until its backend was up; None: it never was."""


def first_parts(units: Sequence[str], wanted: Sequence[str]) -> tuple[Part, ...]:
    """Returns the parts to begin with: all of `units` if all are `wanted`, else the largest aligned
    runs of those `wanted`. A run is aligned if its length is a power of two and it begins at a
    multiple of that."""
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


def next_part(begin: Sequence[Part], tried: Mapping[Part, PartResult]) -> Part | None:
    """Returns the part to probe next, a largest one; None: nothing is left to probe."""
    left = (part for run in begin for part in _left(run, tried))
    return max(left, key=len, default=None)


def patience(tried: Mapping[Part, PartResult], first: float) -> float:
    """Returns how many seconds the process for the next part may take to start.

    The first process may take `first` seconds, a later one half of that. Once another part has come
    up, it is twice the longest time that one took, but at least 20 s and at most half of `first`.
    """
    if not tried:
        return first
    took = [one.startup_seconds for one in tried.values() if one.startup_seconds is not None]
    return min(first / 2, max(_LEAST_START, 2 * max(took))) if took else first / 2


def _left(part: Part, tried: Mapping[Part, PartResult]) -> Iterator[Part]:
    if part not in tried:
        yield part
    elif tried[part].problem is not None and len(part) > 1:
        half = len(part) // 2
        yield from _left(part[:half], tried)
        yield from _left(part[half:], tried)


def healthy_units(tried: Mapping[Part, PartResult]) -> frozenset[str]:
    """Returns the units of all parts that have no problem."""
    return frozenset(unit for part, one in tried.items() if one.problem is None for unit in part)


def faulty_units(units: Sequence[str], tried: Mapping[Part, PartResult]) -> tuple[BadUnit, ...]:
    """Returns those of `units` that are not known to be healthy, each with the reason."""
    found, good = [], healthy_units(tried)
    for unit in units:
        if unit not in good:
            alone = tried.get((unit,), PartResult("not probed alone: no time was left"))
            found.append(BadUnit(unit, alone.problem or "", found=alone.found))
    return tuple(found)
