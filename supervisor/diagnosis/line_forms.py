"""The forms of output lines: those of tracebacks, of loggers, and of native code.

Every regular expression is anchored or has no nested repetition, because an output may hold
anything.
"""

from __future__ import annotations

import re

MAX_LINE = 4000
GAP = "[...]"
"""Marks where a part of the output is left out. The line after it may lack its beginning."""

HEADER = "Traceback (most recent call last)"
CAUSED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_CUT = 20
"""Characters of the end of such a line that identify it, if the log begins within the line."""
MEMBER = re.compile(r"[-+| ]*-{5} ?(?:\d+|\.\.\.) ?-{5}")
"""The line between the members of an exception group."""

_WHEN = re.compile(r"[IWEF](\d\d)(\d\d) |\d{4}-(\d\d)-(\d\d)[ T]")
_TIME = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d+)?")
LOGGED = re.compile(r"[IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d[ T]\d\d:|(?:INFO|WARNING|ERROR|DEBUG):")
INFO = re.compile(
    r"[IW]\d{4} \d\d:|\d{4}-\d\d-\d\d[ T][\d:.,]+:? (?:[IW]|INFO|WARNING|DEBUG)\b|"
    r"(?:INFO|WARNING|DEBUG)[: ]"
)
STACK = re.compile(
    r"\s+@ |\*\*\* Check failure|Extension modules: |(?:Current t|T)hread 0x|\s*\^|#\d+ 0x|-{8,}|"
    r"\s+File \"[^\"]*\", line \d+ in |\s+Binary file \"|\s+<no Python frame>|Stack \(most recent|"
    r"\S+\.py:\d+: \w*Warning\b|Exception ignored|Fatal Python error: Aborted|"
    r"For simplicity, JAX has|For simplicity, Grain has"
)
NOISE = re.compile(
    r"Event loop is closed|cannot schedule new futures after|cannot join current thread|"
    r"can't (?:create|start) new thread at interpreter shutdown|Python is likely shutting down|"
    r"I/O operation on closed file|leaked \w+ objects|Task was destroyed but it is pending|"
    r"interpreter shutdown|Set changed size during iteration"
)
"""What Python prints when it ends, whatever the cause."""


def is_caused(line: str) -> bool:
    """True if the line says that one exception led to another. It may lack its beginning."""
    return len(line) >= _CUT and any(each.endswith(line) for each in CAUSED)


def when(line: str) -> str:
    """Returns the time at the head of a log line as `MMDD HH:MM:SS`, with any fraction of a second.

    It sorts as text. Empty: the line has no time.
    """
    head = _WHEN.match(line)
    clock = _TIME.search(line, 0, 40) if head is not None else None
    if head is None or clock is None:
        return ""
    return f"{head[1] or head[3]}{head[2] or head[4]} {clock[0].replace(',', '.')}"
