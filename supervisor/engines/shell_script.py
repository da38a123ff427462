"""Reads the shell script that a command runs, because its last command gives the exit code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from supervisor.config.known_programs import is_shell
from supervisor.engines.python_program import script_of
from supervisor.protocol.reading import UnreadableError, open_file

_MAX_SCRIPT = 64 << 10
_SHEBANG = re.compile(r"#!\s*(\S+)(?:[ \t]+(\S+))?")


def shell_script(argv: Sequence[str]) -> tuple[str, str] | tuple[None, None]:
    """Returns the path and the text of the shell script that `argv` runs; None: it runs none, or it
    cannot be read, which its start will tell."""
    place = script_of(argv) if is_shell(argv[0]) else 0 if "/" in argv[0] else None
    if place is None:
        return None, None
    try:
        with open_file(argv[place], linked=True) as file:
            text = file.read(_MAX_SCRIPT).decode(errors="replace")
    except (OSError, UnreadableError):
        return None, None
    begins = _SHEBANG.match(text)
    if place == 0 and not (begins and any(is_shell(word) for word in begins.groups() if word)):
        return None, None
    return argv[place], text
