"""Durations in words, for all that people read."""

from __future__ import annotations

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def duration(seconds: float) -> str:
    """Returns a duration for people, with at most two units: `1 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for (unit, size), (next_unit, next_size) in zip(_UNITS, (*_UNITS[1:], ("s", 1)), strict=True):
        if whole >= size:
            more = whole % size // next_size
            return f"{whole // size} {unit}" + (f" {more} {next_unit}" if more else "")
    return f"{whole} s"
