"""The names of steps that count where the config describes no layout and names no directory.

A time is no step there: a file that is named after the time of day would be progress in each
attempt. And where others may save in the same folder, only the kinds of names count that the
program was seen to write (`ckpt_a_step_#.pkl`).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from supervisor.protocol.checkpoint_layouts import step_of

_TEMPORARY = re.compile(r"\.orbax-checkpoint-tmp.*|\.(tmp|temp|part|partial)$")
_DIGITS = re.compile(r"\d+")
_YEAR = 366 * 86400.0
_UNITS = (1.0, 1e3, 1e6)
"""Of a Unix time: seconds, milliseconds, microseconds. Nanoseconds are too long for a step."""
_CLOCKS = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""Formats of a date, by the number of digits."""


@dataclass(frozen=True, slots=True)
class UsualNames:
    """See `protocol.committed.OwnNames`."""

    kinds: tuple[str, ...] = ()
    """The kinds of names that count (`kind_of`); empty: all do."""

    @property
    def marker(self) -> str | None:
        """See `OwnNames`."""
        return None

    @property
    def is_described(self) -> bool:
        """See `OwnNames`."""
        return False

    def step_of(self, name: str) -> int | None:
        """See `OwnNames`."""
        step = step_of(name)
        if step is None or (self.kinds and kind_of(name) not in self.kinds):
            return None
        return None if is_time(step, time.time()) else step


def final_name(name: str) -> str:
    """Returns the name of a step that is being written, as it will be then."""
    return _TEMPORARY.sub("", name)


def kind_of(name: str) -> str:
    """Returns the name of a step without the step: the same for all steps of a program."""
    return _DIGITS.sub("#", final_name(name))


def is_time(number: int, now: float) -> bool:
    """Whether `number` is a date or a Unix time that is less than a year from `now`."""
    if any(abs(number / unit - now) < _YEAR for unit in _UNITS):
        return True
    text = str(number)
    if len(text) not in _CLOCKS:
        return False
    try:
        at = datetime.strptime(text, _CLOCKS[len(text)]).replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs(at.timestamp() - now) < _YEAR
