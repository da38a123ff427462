"""Names the folders of phases and attempts, and sorts attempts by their start.

The name of an attempt's folder is its number, with zeros in front up to four digits. Sorted as
text, 10000 would come before 9999, so `attempts_in_order` sorts by number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

PHASE_SUFFIX = "_restartable"
"""The end of the name of each phase's folder. The name begins with the time at which the phase
began."""
ATTEMPTS_FOLDER = "attempts"
"""The folder, in the folder of a phase, that holds the folders of its attempts."""
STACKS, NATIVE_STACKS = "stacks.txt", "native-stacks.txt"
"""The ends of the names of files with the stacks of a rank: its Python stacks, and those that
py-spy takes."""
BELOW_STACKS = f"below.{NATIVE_STACKS}"
"""The stacks that py-spy takes of the only program below a rank that is a wrapper."""
STACKS_TO_READ = (BELOW_STACKS, STACKS, NATIVE_STACKS)
"""Where to look for the place at which a rank stands, the best first."""
_PHASE = re.compile(rf"[0-9]{{8}}_[0-9]{{6}}{PHASE_SUFFIX}")
_NUMBER = re.compile(r"[0-9]{4,18}")


def phase_folder(wall: datetime) -> str:
    """Returns the name of the folder of a phase that begins at the time `wall`."""
    return f"{wall:%Y%m%d_%H%M%S}{PHASE_SUFFIX}"


def is_phase_folder(name: str) -> bool:
    """True if the folder of a phase can have this name."""
    return _PHASE.fullmatch(name) is not None


def attempt_folder(attempt: int) -> str:
    """Returns the path of an attempt's folder, relative to the folder of its phase."""
    return f"{ATTEMPTS_FOLDER}/{_name(attempt)}"


def attempt_of(name: str) -> int | None:
    """Returns the number of the attempt whose folder has this name; None: it is no attempt's."""
    number = int(name) if _NUMBER.fullmatch(name) else None
    return number if number is not None and _name(number) == name else None


def attempts_in_order(names: Iterable[str]) -> list[str]:
    """Returns those of `names` that are names of attempts' folders, in the order of their start."""
    numbers = (number for name in names if (number := attempt_of(name)) is not None)
    return [_name(number) for number in sorted(numbers)]


def _name(attempt: int) -> str:
    return f"{attempt:04d}"
