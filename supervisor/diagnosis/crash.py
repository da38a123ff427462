"""What `faulthandler` writes when native code crashes, as a traceback that a person can read.

It writes the most recent call first, and other threads before the one that crashed; a traceback of
Python ends with the most recent call and with the error. Here it is brought into that order.
"""

from __future__ import annotations

import re

from supervisor.diagnosis.frames import frame_in, place

_ERROR = re.compile(r"Fatal Python error: .*")
_THREAD = re.compile(r"Current thread 0x[0-9a-f]+ .*\(most recent call first\):")
_CALL = re.compile(r'(  File ".*", line \d+) (in .*)')


def traceback_of_crash(stacks: str) -> str:
    """The traceback of the thread that crashed; empty where the stacks are of no crash.

    Of a thread without Python code (one of XLA's, say) there is the error alone.
    """
    lines = stacks.splitlines()
    at = max((n for n, line in enumerate(lines) if _ERROR.fullmatch(line)), default=None)
    if at is None:
        return ""
    calls = [_as_python_writes(line) for line in _of_current_thread(lines[at:])]
    head = ["Traceback (most recent call last):"] if calls else []
    return "\n".join([*head, *reversed(calls), lines[at]])


def place_of_crash(traceback: str) -> str:
    """The innermost place in the user's own code in such a traceback; empty where it has none."""
    return place([frame for line in traceback.splitlines() if (frame := frame_in(line))])


def _as_python_writes(line: str) -> str:
    call = _CALL.fullmatch(line)
    return f"{call[1]}, {call[2]}" if call is not None else line


def _of_current_thread(lines: list[str]) -> list[str]:
    start = next((n + 1 for n, line in enumerate(lines) if _THREAD.fullmatch(line)), len(lines))
    end = next((n for n in range(start, len(lines)) if not lines[n].startswith("  ")), len(lines))
    return lines[start:end]
