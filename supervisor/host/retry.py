"""Trying again: pauses that grow, and the loop that makes the tries of one call.

Pure: the clock, the sleep and the random number are given, so tests need no time. This is why it
is ours: tenacity and stamina read the clock themselves, and neither tells a try how much time is
left for it (docs/libraries.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")
_LEAST = 0.01
"""Seconds that even the last try gets."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses between tries: each is twice the one before, from `first` to `longest` seconds."""

    first: float
    longest: float
    spread: float = 0.0
    """The share of a pause that is random: it keeps clients apart that failed together."""

    def before(self, number: int, luck: float = 1.0) -> float:
        """Seconds to wait before the try `number` (the second is 1); `luck` is from 0 to 1."""
        whole = min(self.first * 2.0 ** min(number - 1, 60), self.longest)
        return whole * (1.0 - self.spread * (1.0 - luck))


@dataclass(frozen=True, slots=True)
class Retry:
    """When to try again, and when to give up: after `tries` tries or `seconds` seconds."""

    pauses: Pauses
    tries: float = math.inf
    seconds: float = math.inf

    def call(
        self,
        attempt: Callable[[float], _T],
        *,
        sleep: Callable[[float], None],
        clock: Callable[[], float] = lambda: 0.0,
        luck: Callable[[], float] = lambda: 1.0,
    ) -> _T:
        """Return what `attempt` returns. It is told how many seconds are left for the try.

        Raises:
            Exception: what `attempt` raises. Of a `PassesError`, `final`, once it is the last try.
        """
        end = clock() + self.seconds
        number = 0
        while True:
            try:
                return attempt(max(end - clock(), _LEAST))
            except PassesError as error:
                number += 1
                pause = self.pauses.before(number, luck())
                if number >= self.tries or clock() + pause >= end:
                    raise error.final from error.__cause__
            sleep(pause)


class PassesError(Exception):
    """A try failed in a way that may pass."""

    def __init__(self, final: Exception) -> None:
        """`final` is raised where there is no other try."""
        super().__init__(str(final))
        self.final = final
