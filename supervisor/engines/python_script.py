"""Starts an executable Python script by its interpreter, so that it gets the bootstrap too.

The kernel runs `./train.py` by the interpreter that the first line of the file names. Here the same
command line is made before the start. Only files whose name ends with `.py` count: launchers such
as `bin/torchrun` are Python scripts too, and are started as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from supervisor.config.known_programs import is_cpython
from supervisor.protocol.reading import UnreadableError, open_file

_MAX_LINE = 256
"""The kernel reads no more of the first line."""
_SHEBANG = re.compile(rb"#![ \t]*(/[^ \t\n]+)(?:[ \t]+([^\n]*?))?[ \t]*\n")


def with_interpreter(argv: Sequence[str]) -> list[str]:
    """Returns `argv` with the interpreter before its first word, if that is the path of a Python
    script which names its own interpreter; else `argv` unchanged."""
    if "/" not in argv[0] or not argv[0].endswith(".py"):
        return list(argv)
    try:
        with open_file(argv[0], linked=True) as file:
            begins = _SHEBANG.match(file.read(_MAX_LINE))
    except (OSError, UnreadableError):
        return list(argv)  # its start will tell
    if begins is None:
        return list(argv)
    words = [word.decode(errors="surrogateescape") for word in begins.groups() if word]
    if PurePath(words[0]).name == "env" and len(words) > 1:
        words = words[1:]  # `env -S` has options behind it: no interpreter
    return [*words, *argv] if is_cpython(words[0]) else list(argv)
