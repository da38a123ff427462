"""Opens the table of failed ranks that torchrun prints below its own error.

The table has the traceback of a rank if the program records it (`torch.distributed.elastic`,
`record`). There it is indented, behind the word `traceback`. Opened, it looks like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from supervisor.diagnosis.line_forms import HEADER
from supervisor.diagnosis.log_lines import LogLine

_FIRST = re.compile(rf"(  )traceback : (?={re.escape(HEADER)})")


def opened(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yields the lines; a traceback in torchrun's table loses its indentation."""
    margin = ""
    for line in lines:
        first = _FIRST.match(line.text)
        if first is not None:
            margin = first[1]
            yield line._replace(text=line.text[first.end() :])
        elif margin and line.text.startswith(margin):
            yield line._replace(text=line.text.removeprefix(margin))
        else:
            margin = ""
            yield line
