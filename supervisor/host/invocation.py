"""The command that started this process, as a person would type it again.

Whoever finds a job that has ended, perhaps another person at 2 a.m., has to run that command, and
need not have typed it.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = "supervise"
_MAX_LENGTH = 4096
"""Characters of a command that a person would still copy."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command, and the folder in which it was typed. Its relative paths begin there."""

    command: str
    directory: str


def own_invocation() -> Invocation | None:
    """Returns how this process was started; None: another program called ours, or that folder is
    not there any more."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py" and program.parent.name == "supervisor":
        words = [sys.executable, "-m", "supervisor"]
    elif program.name == _PROGRAM:
        words = [_PROGRAM if _is_found(program) else str(program)]
    else:
        return None
    command = shlex.join([*words, *sys.argv[1:]])
    try:
        return Invocation(command, str(Path.cwd())) if len(command) <= _MAX_LENGTH else None
    except FileNotFoundError:
        return None


def _is_found(program: Path) -> bool:
    """Whether a shell finds `program` by its name alone."""
    found = shutil.which(_PROGRAM)
    return found is not None and program.exists() and program.samefile(found)
