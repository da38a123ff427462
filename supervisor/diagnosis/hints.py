"""Finds hints about an exception without a message: its line of code, and the output before it.

`AssertionError` alone says nothing. `assert jnp.isfinite(loss)` does, and so does a warning of NCCL
in the line before. Both are only hints: they may show that another try can succeed, never that it
cannot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from supervisor.diagnosis.frames import frame_in
from supervisor.diagnosis.line_forms import INFO

_MAX_LINES = 5
_MAX_LENGTH = 600
_ABOVE = re.compile(r"(?i)\b(?:look at|see|check) (?:the )?(?:errors?|messages?|logs?) above\b")
_WORDLESS = re.compile(r"[\w.<>]+(?:: ?(?:None|[\W_]*))?")


def is_wordless(line: str) -> bool:
    """True if an exception's line holds only its type. `None` and punctuation are no message."""
    return _WORDLESS.fullmatch(line.rstrip()) is not None


def points_above(text: str) -> bool:
    """True if an error refers to lines that were printed before it, as XLA's cuDNN error does."""
    return _ABOVE.search(text) is not None


def hints_of(lines: Sequence[str], began: int | None, ended: int) -> str:
    """Returns the hints about the exception in line `ended`, whose traceback began in `began`.

    `began` is None if no line begins a traceback: then the only hint is the line of code.
    """
    hints = [code(lines, ended), *(_before(lines, began) if began is not None else ())]
    return "\n".join(hint[:_MAX_LENGTH] for hint in hints)


def code(lines: Sequence[str], ended: int) -> str:
    """Returns the innermost line of code that the traceback shows; empty if it shows none."""
    for number in range(ended - 1, max(0, ended - 4), -1):
        if not _marks(lines[number]):
            return "" if frame_in(lines[number]) is not None else lines[number].strip()
    return ""


def _marks(line: str) -> bool:
    """True if the line only marks a part of the code line above it, with `^` and `~`."""
    marks = "".join(line.split())
    return bool(marks) and not marks.strip("^~")


def _before(lines: Sequence[str], began: int) -> list[str]:
    """Returns up to 5 lines before the traceback. The search stops at a frame, and at a log line
    whose level reports no error."""
    found: list[str] = []
    for number in range(began - 1, max(-1, began - 1 - _MAX_LINES), -1):
        if INFO.match(lines[number]) or frame_in(lines[number]) is not None:
            break
        found.insert(0, lines[number].strip())
    return found
