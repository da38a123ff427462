"""Finds a pipe in a shell command whose exit code hides the failure of the program before it.

A shell exits as the last command of a pipe does: `python train.py | tee log` ends with 0 as `tee`
does, however the program ended. With `set -o pipefail` the shell exits as the program does.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.config.known_programs import is_launcher, is_python
from supervisor.config.shell_text import commands_in, shell_text

_PIPEFAIL = "pipefail"
_PIPES = ("|", "|&")


def pipe_that_hides_failure(argv: Sequence[str], script: str | None = None) -> str | None:
    """Returns the name of the command that reads the program's output from a pipe, and whose exit
    code the shell command `argv` has; None: there is none. `script` is the text of the script that
    it runs, if it is known."""
    text = shell_text(argv, script)
    if text is None or any(_PIPEFAIL in word for word in (*argv, text)):
        return None
    commands = commands_in(text)
    last = commands[-1].words if commands else ()
    places = [place for place, word in enumerate(last) if word in _PIPES]
    if not places:
        return None
    reader = last[places[-1] + 1 :]
    if not reader or any(is_python(word) or is_launcher(word) for word in reader):
        return None
    return reader[0]
