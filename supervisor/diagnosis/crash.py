"""Turns what `faulthandler` writes when native code crashes into a traceback for people.

`faulthandler` writes the most recent call first, and other threads before the one that crashed. A
traceback of Python ends with the most recent call and the error; this file makes that order.
"""

from __future__ import annotations

import re

from supervisor.diagnosis.failure import RankEvidence
from supervisor.diagnosis.frames import Frame, frame_in, place
from supervisor.diagnosis.ownership import is_surely_own
from supervisor.diagnosis.signals import CRASHES, WITH_STACKS, signal_of

_ERROR = re.compile(r"Fatal Python error: .*")
_THREAD = re.compile(r"Current thread 0x[0-9a-f]+ .*\(most recent call first\):")
_CALL = re.compile(r'(  File ".*", line \d+) (in .*)')


def python_stack(rank: RankEvidence) -> str:
    """Returns the traceback of a rank that crashed; empty: there is none.

    It is read from `RankEvidence.stacks`, else from the output, which has it if the program's
    author enabled `faulthandler`.
    """
    if signal_of(rank.exit) not in WITH_STACKS:
        return ""
    return traceback_of_crash(rank.stacks or rank.output)


def own_calls(rank: RankEvidence) -> tuple[tuple[str, str], ...]:
    """Returns the user's own functions on the stack of a rank that crashed, each as path and name.

    Returns none for an abort: a rank that loses a peer aborts wherever it is.
    """
    if signal_of(rank.exit) not in CRASHES:
        return ()
    frames = frames_of(python_stack(rank))
    return tuple((each.path, each.function) for each in frames if is_surely_own(each.path))


def traceback_of_crash(stacks: str) -> str:
    """Returns the traceback of the thread that crashed; empty if `stacks` shows no crash.

    For a thread without Python code (one of XLA's, for example) it holds only the error.
    """
    lines = stacks.splitlines()
    at = max((n for n, line in enumerate(lines) if _ERROR.fullmatch(line)), default=None)
    if at is None:
        return ""
    calls = [_as_python_writes(line) for line in _of_current_thread(lines[at:])]
    head = ["Traceback (most recent call last):"] if calls else []
    return "\n".join([*head, *reversed(calls), lines[at]])


def place_of_crash(traceback: str) -> str:
    """Returns the innermost place in the user's own code, else of all; empty: there is none."""
    return place(frames_of(traceback))


def frames_of(traceback: str) -> list[Frame]:
    """Returns the frames of the traceback of a crash, the innermost last."""
    return [frame for line in traceback.splitlines() if (frame := frame_in(line))]


def _as_python_writes(line: str) -> str:
    call = _CALL.fullmatch(line)
    return f"{call[1]}, {call[2]}" if call is not None else line


def _of_current_thread(lines: list[str]) -> list[str]:
    start = next((n + 1 for n, line in enumerate(lines) if _THREAD.fullmatch(line)), len(lines))
    end = next((n for n in range(start, len(lines)) if not lines[n].startswith("  ")), len(lines))
    return lines[start:end]
