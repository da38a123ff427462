"""Reads the lines of a traceback that name a place in the code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from supervisor.diagnosis.ownership import is_own

_FRAME = re.compile(r'\s+File "([^"]*)", line (\d+)(?:, in (.*))?$')


class Frame(NamedTuple):
    """A place that a traceback names; `function` is "" if the line names none."""

    path: str
    line: str
    function: str

    def __str__(self) -> str:
        within = f" in {self.function}" if self.function not in ("", "<module>") else ""
        return f"{self.path}:{self.line}{within}"


def frame_in(line: str) -> Frame | None:
    """Returns the frame that a line of a traceback names; None: it names none."""
    match = _FRAME.match(line)
    return Frame(match[1], match[2], match[3] or "") if match is not None else None


def place(frames: Sequence[Frame]) -> str:
    """Returns the innermost place in the user's own code, else of all, as `FILE:LINE in FUNCTION`;
    empty: there are no frames."""
    innermost = next((each for each in reversed(frames) if is_own(each.path)), None)
    if innermost is None and frames:
        innermost = frames[-1]
    return str(innermost) if innermost is not None else ""
