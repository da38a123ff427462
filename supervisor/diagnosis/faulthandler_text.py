"""Removes what faulthandler printed: its stacks show where a process was, not why it ended.

The same event must get the same verdict with and without these lines. The exit of the process says
by which signal it ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from supervisor.diagnosis.log_lines import LogLine

_SIGNALS = (
    r"(?:Fatal Python error|Windows fatal exception): (?:Segmentation fault|Aborted|Bus error|"
    r"Floating[ -]point exception|Illegal instruction|Stack overflow|access violation)\s*$"
)
"""Fatal errors that only repeat how the process ended. All others come from the interpreter itself,
and are causes."""
_SIGNAL = re.compile(_SIGNALS)
_LINE = re.compile(
    r"(?:Current t|T)hread 0x[0-9a-fA-F]+ .*\(most recent call first\):|"
    r"Stack \(most recent call first\):|Current thread's C stack trace|"
    r'  File "[^"]*", line (?:\d+|\?+) in |  Binary file "|  <\w[^<>]*>\s*$|'
    r"  (?:Garbage-collecting|\.\.\.)\s*$|Extension modules: |Timeout \(\d+:\d\d:\d\d[.\d]*\)!|"
    r"<Cannot show all threads"
)


def without_stacks(lines: Sequence[LogLine]) -> Iterator[LogLine]:
    """Yields the lines without those of faulthandler and the empty lines between them."""
    within = False
    for line in lines:
        if _LINE.match(line.text) or (within and not line.text.strip()):
            within = True
            continue
        signal = _SIGNAL.search(line.text)
        within = signal is not None
        if signal is None:
            yield line
        elif before := line.text[: signal.start()]:
            yield line._replace(text=before)
