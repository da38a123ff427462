"""Standard input, output and error, whatever this process was started with.

A shell can close them (`>&-`). The next file that is opened would take the number of the missing
one, and get what is meant for that.
"""

from __future__ import annotations

import os
import sys


def complete() -> None:
    """Open what is missing on /dev/null. To be called before any file is opened."""
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
