"""How the lines of an output look: what begins a traceback, what a logger or native code writes.

Every regular expression is anchored or without nested repetition: an output may hold anything.
"""

from __future__ import annotations

import re

MAX_LINE = 4000
GAP = "[...]"
"""Stands where a part of the output is left out; the line after it may lack its beginning."""

HEADER = "Traceback (most recent call last)"
CAUSED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_CUT = 20
"""So much of the end of one, at the beginning of a log, can be nothing else."""
MEMBER = re.compile(r"[-+| ]*-{5} ?(?:\d+|\.\.\.) ?-{5}")
"""What stands between the members of an exception group."""

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
"""What Python prints of its own end, whatever brought it about."""


def is_caused(line: str) -> bool:
    """Whether it says that one exception came of another; it may lack its beginning."""
    return len(line) >= _CUT and any(each.endswith(line) for each in CAUSED)


def when(line: str) -> str:
    """The time at the head of a log line, in an order of its own; empty where there is none."""
    head = _WHEN.match(line)
    clock = _TIME.search(line, 0, 40) if head is not None else None
    if head is None or clock is None:
        return ""
    return f"{head[1] or head[3]}{head[2] or head[4]} {clock[0].replace(',', '.')}"
