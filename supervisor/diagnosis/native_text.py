"""Finds the errors outside tracebacks: last messages of native code, last lines of the output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from supervisor.diagnosis.chain import Chain, Origin, PrintedError
from supervisor.diagnosis.frames import frame_in
from supervisor.diagnosis.line_forms import HEADER, INFO, NOISE, STACK, when
from supervisor.diagnosis.traceback_text import exception_type

_MAX_FATAL_LINES = 12
_MAX_LAST_LINES = 25
_MAX_STACK_LINES = 200
NATIVE = "<native>"
"""The path of every native frame: the place where it was compiled says nothing."""
_NATIVE_FRAME = re.compile(r"\s*(?:@ +|#\d+:? +)0x[0-9a-f]+(?: in)? +(?:\d+ +)?(\S.{0,300})")
"""Abseil also writes the size of a frame."""
_FATAL = re.compile(
    r"F\d{4} \d\d:|\d{4}-\d\d-\d\d [\d:.]+: F |Fatal Python error: (?!Aborted)|LLVM ERROR|"
    r"terminate called |.*\bCheck failed: |\*\*\* SIG[A-Z]+ (?:received|\(@)"
)


_MAX_HEAD = 300
_NAMED_TYPE = re.compile(r"[\])>|:-] ((?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): \S")


def aborts(lines: Sequence[str]) -> Iterator[Chain]:
    """Yields an error for each message with which native code ends a process."""
    for number, line in enumerate(lines):
        if _FATAL.match(line):
            text = [line]
            for further in lines[number + 1 : number + _MAX_FATAL_LINES]:
                if STACK.match(further) or _FATAL.match(further) or HEADER in further:
                    break
                text.append(further)
            fatal = PrintedError("", line.rstrip(), "\n".join(text))
            frames = tuple(_native_frames(lines[number + 1 : number + _MAX_STACK_LINES]))
            yield Chain((fatal,), Origin.ABORT, frames=frames[::-1], when=when(line))


def _native_frames(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the functions of the first native stack in `lines`, the innermost first."""
    begun = False
    for line in lines:
        frame = _NATIVE_FRAME.match(line)
        if frame is not None:
            begun = True
            yield NATIVE, frame[1]
        elif begun or _FATAL.match(line) or HEADER in line:
            return


def speaks(line: str) -> bool:
    """True if a line says anything: stacks, and what Python prints when it ends, do not."""
    silent = not line.strip() or STACK.match(line) or frame_in(line) or NOISE.search(line)
    return not silent


def _type(line: str) -> str:
    """Returns the type of the exception that a line names; empty: it names none, or a warning.

    The rest of its traceback may be cut off. A logger or a test runner may have written something
    before the exception.
    """
    inside = _NAMED_TYPE.search(line, 0, _MAX_HEAD)
    kind = exception_type(line) or (inside[1] if inside is not None else "")
    return "" if kind.endswith("Warning") else kind


def last_lines(lines: Sequence[str]) -> Chain | None:
    """Returns the last lines that say anything, each as an error; None: there are none."""
    told: list[PrintedError] = []
    for line in reversed(lines[-500:]):
        if len(told) == _MAX_LAST_LINES:
            break
        if speaks(line) and not INFO.match(line):
            told.append(PrintedError(_type(line), line.strip(), line))
    return Chain(tuple(reversed(told)), Origin.OUTPUT) if told else None
