"""Splits the text that a shell runs into its commands.

It is split into words and operators, not parsed. Where that cannot be done (an open quote), no
command is found: the shell itself complains about it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from supervisor.config.known_programs import is_shell

_SETS_COMMAND = re.compile(r"-[A-Za-z]*c")
_COMMENT = re.compile(r"(?m)^\s*#.*$")
_ENDS_COMMAND = (";", "&")
_NO_COMMANDS = ("done", "exit", "fi", "}")
"""Words after the last command that change nothing of its exit code."""


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command of a list, with its pipes, `&&` and `||`, but without substitutions and groups."""

    words: tuple[str, ...]
    in_background: bool
    """Whether the shell goes on without waiting for it."""


def shell_text(argv: Sequence[str], script: str | None = None) -> str | None:
    """Returns the text that a shell runs; None: `argv` is no shell, or runs no text. `script` is
    the text of the script that it runs, if it is known."""
    return _command(argv) if script is None else _COMMENT.sub("", script)


def _command(argv: Sequence[str]) -> str | None:
    if not argv or not is_shell(argv[0]):
        return None
    for place, word in enumerate(argv[1:-1], 1):
        if not word.startswith(("-", "+")):
            return None
        if _SETS_COMMAND.fullmatch(word):
            return argv[place + 1]
    return None


def commands_in(text: str) -> list[ShellCommand]:
    """Returns the commands of a text, up to the last one that decides its exit code."""
    lexer = shlex.shlex(
        text.replace("\\\n", " ").strip().replace("\n", " ; "), posix=False, punctuation_chars=True
    )
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return []
    commands = list(_commands(_outside_groups(words)))
    while commands and commands[-1].words[0] in _NO_COMMANDS:
        commands.pop()
    return commands


def _commands(words: Sequence[str]) -> Iterator[ShellCommand]:
    command: list[str] = []
    for word in (*words, ";"):
        if word not in _ENDS_COMMAND:
            command.append(word)
        elif command:
            yield ShellCommand(tuple(command), word == "&")
            command = []


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
