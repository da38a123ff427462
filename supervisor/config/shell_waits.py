"""Finds a shell that starts several programs and waits until all of them have ended.

Programs that train together wait for one another. If one of them dies, the shell goes on waiting
for the others, which notice it late: jax after about 100 s. And `wait` ends with 0 whatever they
did.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.config.known_programs import is_launcher, is_python
from supervisor.config.shell_text import ShellCommand, commands_in, shell_text

_WAIT = "wait"
_FOR_THE_NEXT = "-n"


def waits_for_all(argv: Sequence[str], script: str | None = None) -> bool:
    """Returns whether the shell command `argv` starts a program in the background, and then waits
    for all. `script` is the text of the script that it runs, if it is known."""
    text = shell_text(argv, script)
    commands = commands_in(text) if text is not None else []
    return (
        bool(commands)
        and commands[-1].words[0] == _WAIT
        and _FOR_THE_NEXT not in commands[-1].words
        and any(map(_is_program_in_background, commands))
    )


def _is_program_in_background(command: ShellCommand) -> bool:
    names_program = any(is_python(word) or is_launcher(word) for word in command.words)
    return command.in_background and names_program
