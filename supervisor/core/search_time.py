"""The time budget for searches of one pattern in the output of a program.

Each search has a time limit, but many slow ones below it would make the reader of the output fall
behind for good, and a program that prints into a full pipe blocks. So each pattern has a budget. A
search is charged only for what it takes beyond a usual search: many lines alone cost nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_AT_ONCE = 1.0
"""Seconds: enough for three searches that reach their time limit."""
_PER_SECOND = 0.1
_FREE = 50e-6
_FREE_PER_CHARACTER = 200e-9
"""Seconds of a search that are free: twice what a usual pattern takes, in time linear in the
text."""


@dataclass(slots=True)
class SearchTime:
    """A budget of one second at once, and of a tenth of the time in the long run."""

    _left: float = 0.0
    _at: float = -math.inf

    def allows(self, now: float) -> bool:
        """Whether budget is left for a search at the time `now`."""
        self._left = min(_AT_ONCE, self._left + (now - self._at) * _PER_SECOND)
        self._at = now
        return self._left > 0.0

    def took(self, seconds: float, characters: int) -> None:
        """Charge a search of `characters` characters that took `seconds`."""
        free = _FREE + _FREE_PER_CHARACTER * characters
        self._left -= max(0.0, seconds - free)
