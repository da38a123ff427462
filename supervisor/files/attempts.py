"""How the folders of phases and attempts are named, and in which order attempts were started.

The name of an attempt is its number, filled up with zeros to four digits: as texts, 10000 comes
before 9999. So whoever needs the order asks here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

PHASE = "_restartable"
"""The names of phases end so. They begin with the time at which the phase began."""
FOLDER = "attempts"
"""In the folder of a phase; holds that of each of its attempts."""
_PHASE = re.compile(rf"[0-9]{{8}}_[0-9]{{6}}{PHASE}")
_NUMBER = re.compile(r"[0-9]{4,18}")


def phase_folder(wall: datetime) -> str:
    """The folder of a phase that begins at that time."""
    return f"{wall:%Y%m%d_%H%M%S}{PHASE}"


def is_phase_folder(name: str) -> bool:
    """Whether the folder of a phase can have this name."""
    return _PHASE.fullmatch(name) is not None


def attempt_folder(attempt: int) -> str:
    """The folder of an attempt, in that of its phase."""
    return f"{FOLDER}/{_name(attempt)}"


def attempt_of(name: str) -> int | None:
    """The number of the attempt whose folder has this name; None: no attempt's has."""
    number = int(name) if _NUMBER.fullmatch(name) else None
    return number if number is not None and _name(number) == name else None


def in_order(names: Iterable[str]) -> list[str]:
    """Those of `names` that are names of attempts, in the order in which these were started."""
    numbers = (number for name in names if (number := attempt_of(name)) is not None)
    return [_name(number) for number in sorted(numbers)]


def _name(attempt: int) -> str:
    return f"{attempt:04d}"
