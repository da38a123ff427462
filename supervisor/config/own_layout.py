"""A checkpoint layout that the config describes: the names of steps, and what commits one."""

from __future__ import annotations

from dataclasses import dataclass
from errno import EINVAL
from functools import cache

from supervisor.config.patterns import Pattern, SlowPatternError

_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class OwnLayout:
    """See `protocol.committed.OwnNames`."""

    pattern: str
    """Regular expression for the whole name, with one group, for the step."""
    marker: str | None
    """The file in a step's folder that commits it; None: a step is a file, which is closed."""

    @property
    def is_described(self) -> bool:
        """See `OwnNames`."""
        return True

    def step_of(self, name: str) -> int | None:
        """Parse the step from a name; None: the name is not that of a step.

        Raises:
            OSError: the pattern takes too long.
        """
        try:
            match = _compiled(self.pattern).search(name)
        except SlowPatternError as error:
            raise OSError(EINVAL, str(error), name) from None
        step = match[1] if match is not None else None
        is_number = step is not None and step.isascii() and step.isdecimal()
        return int(step) if step is not None and is_number and len(step) <= _MAX_DIGITS else None


@cache
def _compiled(source: str) -> Pattern:
    return Pattern(rf"\A(?:{source})\Z")
