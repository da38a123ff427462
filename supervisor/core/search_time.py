"""How much time the searches for one pattern may take while a program prints.

A single search is bounded, but many that each stay below that bound make whoever reads the output
late for good, and a program that prints into a full pipe waits. So a pattern has a budget. Only
what is more than any usual search takes is charged to it: a flood of lines alone uses up nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_AT_ONCE = 1.0
"""Seconds; three searches that are given up fit in."""
_PER_SECOND = 0.1
_FREE = 50e-6
_FREE_PER_CHARACTER = 200e-9
"""Seconds for one search: twice what a usual pattern takes, whose time is linear in the text."""


@dataclass(slots=True)
class SearchTime:
    """A second at once, and a tenth of the time in the long run."""

    _left: float = 0.0
    _at: float = -math.inf

    def allows(self, now: float) -> bool:
        """Whether to search at the time `now`."""
        self._left = min(_AT_ONCE, self._left + (now - self._at) * _PER_SECOND)
        self._at = now
        return self._left > 0.0

    def took(self, seconds: float, characters: int) -> None:
        """A search of so many characters has taken so long."""
        free = _FREE + _FREE_PER_CHARACTER * characters
        self._left -= max(0.0, seconds - free)
