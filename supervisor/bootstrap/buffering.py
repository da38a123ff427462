"""Has the output come line by line, as in a terminal.

Into a pipe, Python collects 8 KiB before it writes: the supervisor would learn of steps in lumps,
minutes late, and of the last lines of a program that is killed not at all.
"""

from __future__ import annotations

import io
import os
import sys


def write_by_lines() -> None:
    """Make standard output line-buffered, and that of Python programs that this one starts
    unbuffered: they have no bootstrap.

    A person who switched buffering off (`-u`, PYTHONUNBUFFERED) or set the variable to nothing
    has chosen, and keeps it.
    """
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    output = sys.stdout
    if isinstance(output, io.TextIOWrapper) and not output.write_through:
        output.reconfigure(line_buffering=True)
