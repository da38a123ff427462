"""Makes the output line-buffered, as in a terminal.

Python buffers 8 KiB before it writes to a pipe: the supervisor would learn of steps in batches,
minutes late, and would never see the last lines of a program that is killed.
"""

from __future__ import annotations

import io
import os
import sys


def write_by_lines() -> None:
    """Make standard output line-buffered. Python programs that this one starts have no bootstrap:
    their output becomes unbuffered.

    If a person switched buffering off (`-u`, PYTHONUNBUFFERED) or set the variable to an empty
    string, that choice stays.
    """
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    output = sys.stdout
    if isinstance(output, io.TextIOWrapper) and not output.write_through:
        output.reconfigure(line_buffering=True)
