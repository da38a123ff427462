"""Finds the program that a command line is about: the script or module behind its launchers.

`nice python -u train.py --lr 1` and `uv run train.py --lr 1` both run train.py. The name of a job
without a config comes from here, so the same program must have the same name however it is started.
Nothing is looked up: the words alone decide.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from supervisor.config.known_programs import (
    PYTHON_FLAGS,
    PYTHON_OPTIONS_WITH_VALUE,
    is_launcher,
    is_python,
    is_shell,
)

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_FLAGS = PYTHON_FLAGS | {"i", "x"}


@dataclass(frozen=True, slots=True)
class NamedProgram:
    """The program that a command line is about."""

    name: str
    """The script as it was typed, the dotted name of a module, or the name of another program."""
    index: int
    """Where the program is on the command line; its arguments are the words after it."""
    is_script: bool
    """Whether the word at `index` is the path of a file."""


def named_program(argv: Sequence[str]) -> NamedProgram:
    """Returns the program that `argv` is about. If no launcher in it is known, that is argv[0]."""
    first = _first_program(argv)
    if is_shell(argv[first]):
        return _of_shell(argv, first)
    for index, word in enumerate(argv):
        if is_python(word) and not word.startswith("-"):
            return _of_python(argv, index)
    if is_launcher(argv[first]) and (found := _of_launcher(argv, first)) is not None:
        return found
    name = PurePosixPath(argv[first]).name
    return NamedProgram(name, first, is_script="/" in argv[first])


def assignments(argv: Sequence[str]) -> list[str]:
    """Returns the variables that `env` sets at the beginning of `argv`, as NAME=VALUE."""
    return [word for word in argv[: _first_program(argv)] if _ASSIGNMENT.match(word)]


def with_shell_words(argv: Sequence[str]) -> list[str]:
    """Returns the words of `argv`, and behind them those in the text of a shell's `-c`."""
    first = _first_program(argv)
    if not is_shell(argv[first]):
        return [*argv]
    program = _of_shell(argv, first)
    has_text = not program.is_script and program.index != first
    return [*argv, *(_words_of_shell(argv[program.index]) if has_text else [])]


def _words_of_shell(text: str) -> list[str]:
    """Returns the words and operators of a shell's text, without quotes; empty: it is none."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:  # a quote that is not closed
        return []


def _first_program(argv: Sequence[str]) -> int:
    """Returns the index of the first word behind `env` and its assignments."""
    index = 0
    if PurePosixPath(argv[0]).name == "env":
        index = 1
        while index < len(argv) and _ASSIGNMENT.match(argv[index]):
            index += 1
    return index if index < len(argv) else 0


def _of_shell(argv: Sequence[str], shell: int) -> NamedProgram:
    """Returns the script that the shell at `shell` runs, or the program in the text of its `-c`."""
    index = shell + 1
    while index < len(argv):
        word = argv[index]
        if not word.startswith(("-", "+")):
            return NamedProgram(word, index, is_script=True)
        if word.endswith("c") and not word.startswith("--") and index + 1 < len(argv):
            inner = _of_text(argv[index + 1])
            name = inner.name if inner is not None else PurePosixPath(argv[shell]).name
            return NamedProgram(name, index + 1, is_script=False)
        index += 2 if word[1:] in ("o", "O") else 1  # -o pipefail
    return NamedProgram(PurePosixPath(argv[shell]).name, shell, is_script=False)


def _of_text(text: str) -> NamedProgram | None:
    """Returns the Python program in a shell's text; None: there is none, or it is no shell text."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is not closed
        return None
    for index, word in enumerate(words):
        if is_python(word):
            return _of_python(words, index)
    return _of_launcher(words, -1) if words else None


def _of_python(argv: Sequence[str], interpreter: int) -> NamedProgram:
    """Returns the script or module that the interpreter at `interpreter` runs."""
    index = interpreter + 1
    while index < len(argv) and argv[index].startswith("-"):
        option = argv[index]
        for place, letter in enumerate(option[1:], 1):
            if letter in "mc":
                index += place == len(option) - 1  # the value is the next word
                if index >= len(argv):
                    break
                is_here = place < len(option) - 1  # as in -mtrainer
                module = option[place + 1 :] if is_here else argv[index]
                name = module if letter == "m" and module else PurePosixPath(argv[interpreter]).name
                return NamedProgram(name, index, is_script=False)
            if letter in PYTHON_OPTIONS_WITH_VALUE:
                index += place == len(option) - 1
                break
            if letter not in _FLAGS:
                break
        index += 1
    if index < len(argv):
        return NamedProgram(argv[index], index, is_script=True)
    name = PurePosixPath(argv[interpreter]).name
    return NamedProgram(name, interpreter, is_script=False)


def _of_launcher(argv: Sequence[str], launcher: int) -> NamedProgram | None:
    """Returns the script or module behind the options of the launcher at `launcher`."""
    for index in range(launcher + 1, len(argv)):
        word = argv[index]
        if word in ("-m", "--module") and index + 1 < len(argv):
            return NamedProgram(argv[index + 1], index + 1, is_script=False)
        if word.endswith((".py", ".sh")) and not word.startswith("-"):
            return NamedProgram(word, index, is_script=True)
    return None
