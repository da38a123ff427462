"""Recognises a Python program on a command line, and puts the bootstrap in front of it.

The interpreter stays the one that was asked for, with all its options: only the place of the
program is taken, by the file `supervisor/bootstrap/start.py`, which finds the program behind it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from supervisor import bootstrap

START = str(Path(bootstrap.__file__).absolute().parent / "start.py")

_INTERPRETER = re.compile(r"python(\d+(\.\d+)?t?)?")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_FLAGS = frozenset("bBdEIOPqRsStuv")
_WITH_VALUE = frozenset("WX")
_LONG_WITH_VALUE = "--check-hash-based-pycs"
_PROGRAM = frozenset("cm")


def bootstrapped(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """`argv` with the bootstrap in it, if it runs a Python program.

    The second value says why a Python program is to run as it is; None: there is nothing to say.
    """
    if not _INTERPRETER.fullmatch(Path(argv[0]).name) and argv[0] != sys.executable:
        return list(argv), None
    index = 1
    while index < len(argv) and argv[index].startswith("-"):
        option, values = argv[index], 0
        if option == _LONG_WITH_VALUE:
            index += 2
            continue
        if option.startswith("--") or option == "-":
            return list(argv), _unknown(option)
        for place, letter in enumerate(option[1:], 1):
            if letter in _PROGRAM:
                flags = [option[:place]] if place > 1 else []
                rest = [f"-{option[place:]}", *argv[index + 1 :]]
                return [*argv[:index], *flags, START, *rest], None
            if letter in _WITH_VALUE:
                values = 1 if place == len(option) - 1 else 0
                break
            if letter not in _FLAGS:
                return list(argv), _unknown(option)
        index += 1 + values
    if index >= len(argv):
        return list(argv), "it comes from standard input"
    return [*argv[:index], START, *argv[index:]], None


def has_bootstrap(argv: Sequence[str]) -> bool:
    """Whether the bootstrap is on this command line."""
    return START in argv


def script_of(argv: Sequence[str]) -> int | None:
    """Where in `argv` the script stands that an interpreter is to run; None: there is none."""
    if is_shell(argv[0]):
        return 1 if len(argv) > 1 and not argv[1].startswith(("-", "+")) else None
    words, _ = bootstrapped(argv)
    if START not in words:
        return None
    index = words.index(START)  # the program takes its place; flags before it may be written apart
    behind = len(words) - index - 1
    return None if words[index + 1].startswith(("-c", "-m")) else len(argv) - behind


def is_shell(program: str) -> bool:
    """Whether a program is a shell: what it runs is its own to read."""
    return Path(program).name in _SHELLS


def interpreter_part(argv: Sequence[str]) -> int:
    """How many arguments come before the program, the bootstrap included; all where there is none.

    They decide what the interpreter is like; the others can be told to the program later.
    """
    return argv.index(START) + 1 if has_bootstrap(argv) else len(argv)


def _unknown(option: str) -> str:
    return f"Python's option {option} is not one that it can keep"
