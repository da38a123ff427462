"""Finds a pipe in a shell command whose exit code hides the failure of the program before it.

A shell exits as the last command of a pipe does: `python train.py | tee log` ends with 0 as `tee`
does, however the program ended. With `set -o pipefail` the shell exits as the program does.

The text is split into words and operators, not parsed. Where that cannot be done (an open quote),
no pipe is found: the shell itself complains about it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import groupby

from supervisor.config.known_programs import is_launcher, is_python, is_shell

_SETS_COMMAND = re.compile(r"-[A-Za-z]*c")
_COMMENT = re.compile(r"(?m)^\s*#.*$")
_PIPEFAIL = "pipefail"
_PIPES = ("|", "|&")
_ENDS_COMMAND = (";", "&")
_NO_COMMANDS = ("done", "exit", "fi", "}")
"""Words after the last command that change nothing of its exit code."""


def pipe_that_hides_failure(argv: Sequence[str], script: str | None = None) -> str | None:
    """Returns the name of the command that reads the program's output from a pipe, and whose exit
    code the shell command `argv` has; None: there is none. `script` is the text of the script that
    it runs, if it is known."""
    text = _command(argv) if script is None else _COMMENT.sub("", script)
    if text is None or any(_PIPEFAIL in word for word in (*argv, text)):
        return None
    last = _last_command(text)
    places = [place for place, word in enumerate(last) if word in _PIPES]
    if not places:
        return None
    reader = last[places[-1] + 1 :]
    if not reader or any(is_python(word) or is_launcher(word) for word in reader):
        return None
    return reader[0]


def _command(argv: Sequence[str]) -> str | None:
    """Returns the text that a shell runs; None: `argv` is no shell, or runs no text."""
    if not argv or not is_shell(argv[0]):
        return None
    for place, word in enumerate(argv[1:-1], 1):
        if not word.startswith(("-", "+")):
            return None
        if _SETS_COMMAND.fullmatch(word):
            return argv[place + 1]
    return None


def _last_command(text: str) -> list[str]:
    """Returns the words of the last command of a list, with its pipes, `&&` and `||`, but without
    substitutions and groups."""
    lexer = shlex.shlex(
        text.replace("\\\n", " ").strip().replace("\n", " ; "), posix=False, punctuation_chars=True
    )
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return []
    commands = [
        list(command)
        for ends, command in groupby(_outside_groups(words), _ENDS_COMMAND.__contains__)
        if not ends
    ]
    while commands and commands[-1][0] in _NO_COMMANDS:
        commands.pop()
    return commands[-1] if commands else []


def _outside_groups(words: Sequence[str]) -> list[str]:
    """Returns the words that are in no parentheses."""
    depth = 0
    found = []
    for word in words:
        if set(word) <= set("()"):
            depth += word.count("(") - word.count(")")
        elif depth == 0:
            found.append(word)
    return found
