"""Retries one call with exponential backoff.

Pure: clock, sleep and random number are parameters, so tests take no time. That is why we do not
use a library: tenacity and stamina read the clock themselves, and neither tells an attempt how much
time it has left (docs/reference/libraries.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")
_LEAST = 0.01
"""Seconds that every try gets, also the last one."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses between tries: each is twice the previous one, from `first` to `longest` seconds."""

    first: float
    longest: float
    spread: float = 0.0
    """Jitter: the random share of a pause, so that clients that failed together do not retry
    together."""

    def before(self, number: int, luck: float = 1.0) -> float:
        """Seconds to wait before retry `number` (1 is the first retry); `luck` is a random number
        from 0 to 1."""
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
        """Call `attempt` until it succeeds, and return what it returns. Its argument is the number
        of seconds left for the try.

        Raises:
            Exception: what `attempt` raises. For a `PassesError` of the last try: its `final`.
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
    """A try failed for a reason that may pass: try again."""

    def __init__(self, final: Exception) -> None:
        """`final` is raised instead if no try is left."""
        super().__init__(str(final))
        self.final = final
