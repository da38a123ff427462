"""How many lines of one kind run.log takes: no flood hides what is rare."""

from __future__ import annotations

import math
from dataclasses import dataclass

_AT_ONCE = 20.0
_PER_SECOND = 0.1


@dataclass(slots=True)
class Allowance:
    """Twenty lines at once, and one in ten seconds in the long run."""

    _left: float = 0.0
    _at: float = -math.inf

    def take(self, now: float) -> bool:
        """Whether a line may be written at the time `now`."""
        left = min(_AT_ONCE, self._left + (now - self._at) * _PER_SECOND)
        allowed = left >= 1
        self._left, self._at = (left - 1 if allowed else left), now
        return allowed
