"""The programs that are known by name on a command line: Python, shells and launchers.

All who look at a command ask this one table, so that they agree on what a word is. The last part of
a path counts: `/usr/bin/python3.12` is Python.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_PYTHON = re.compile(r"(python|pypy)(?:\d+(?:\.\d+)?t?)?")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_LAUNCHERS = frozenset({"accelerate", "deepspeed", "poetry", "pdm", "torchrun", "uv"})

PYTHON_FLAGS = frozenset("bBdEIOPqRsStuv")
"""Python's options without a value, but for those that read more than the program: `-i`, `-x`."""
PYTHON_OPTIONS_WITH_VALUE = frozenset("WX")


def is_python(word: str) -> bool:
    """True if `word` names an interpreter of Python."""
    return _PYTHON.fullmatch(_name(word)) is not None


def is_cpython(word: str) -> bool:
    """True if `word` names an interpreter of Python, and none that is known to be another one than
    CPython."""
    found = _PYTHON.fullmatch(_name(word))
    return found is not None and found[1] == "python"


def is_shell(word: str) -> bool:
    """True if `word` names a shell."""
    return _name(word) in _SHELLS


def is_launcher(word: str) -> bool:
    """True if `word` names a program whose own options come before the script that it runs."""
    return _name(word) in _LAUNCHERS


def _name(word: str) -> str:
    return PurePosixPath(word).name
