"""What stands beside an exception without words: the line of code that raised it, and what was
printed just before its traceback.

`AssertionError` alone says nothing. `assert jnp.isfinite(loss)` does, and so does a warning of NCCL
in the line before. Both are no more than hints: they may tell why another try can succeed, and
never that it cannot.
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
    """Whether the line of an exception holds no more than its type."""
    return _WORDLESS.fullmatch(line.rstrip()) is not None


def points_above(text: str) -> bool:
    """Whether an error refers to what was printed before it, as XLA's of cuDNN does."""
    return _ABOVE.search(text) is not None


def beside(lines: Sequence[str], began: int | None, ended: int) -> str:
    """The hints beside the exception in line `ended`, whose traceback began in line `began`."""
    hints = [code(lines, ended), *(_before(lines, began) if began is not None else ())]
    return "\n".join(hint[:_MAX_LENGTH] for hint in hints)


def code(lines: Sequence[str], ended: int) -> str:
    """The innermost line of code that the traceback shows; empty where it shows none."""
    for number in range(ended - 1, max(0, ended - 4), -1):
        if not _marks(lines[number]):
            return "" if frame_in(lines[number]) is not None else lines[number].strip()
    return ""


def _marks(line: str) -> bool:
    """Whether the line only marks a part of the line of code above it."""
    marks = "".join(line.split())
    return bool(marks) and not marks.strip("^~")


def _before(lines: Sequence[str], began: int) -> list[str]:
    """What was printed just before the traceback, up to what tells of no trouble."""
    found: list[str] = []
    for number in range(began - 1, max(-1, began - 1 - _MAX_LINES), -1):
        if INFO.match(lines[number]) or frame_in(lines[number]) is not None:
            break
        found.insert(0, lines[number].strip())
    return found
