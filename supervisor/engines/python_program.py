"""Recognises a Python program on a command line, and puts the bootstrap in front of it.

The interpreter and its options stay as they are. The file `supervisor/bootstrap/start.py` takes the
place of the program, and finds the program behind it on the command line.

A command such as `nice`, which sets something up and then execs the program in the same process,
may stand before the interpreter. It passes the bootstrap's variables and descriptors on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from supervisor import bootstrap
from supervisor.config.known_programs import (
    PYTHON_FLAGS,
    PYTHON_OPTIONS_WITH_VALUE,
    is_cpython,
    is_shell,
)

START = str(Path(bootstrap.__file__).absolute().parent / "start.py")
"""The file that stands before the program on a bootstrapped command line."""

_LONG_WITH_VALUE = "--check-hash-based-pycs"
_PROGRAM = frozenset("cm")

_END = "\0"
"""Ends each word of a command line that is matched by the patterns below."""
_WORD = f"[^{_END}]+"
_BECOME = {
    "env": rf"([A-Za-z_]\w*=[^{_END}]*{_END})*",
    "ionice": rf"(-t{_END}|-[cn]{_END}?\w+{_END})*",
    "nice": rf"((-n{_END}?|-|--adjustment=)-?\d+{_END})*",
    "nohup": "",
    "numactl": rf"(-[CNim]{_END}{_WORD}{_END}|--[a-z]+={_WORD}{_END}|(-l|--localalloc){_END})*",
    "stdbuf": rf"(-[eio]{_END}?{_WORD}{_END}|--(error|input|output)={_WORD}{_END})+",
    "taskset": rf"(-c{_END})?[\da-fx,:-]+{_END}",
}
"""The commands that exec the program in their own process, each with a pattern for the words that
may follow its name. `env` may have no options: `-i` would remove the bootstrap's variables."""
_SETTING = frozenset({"env", "stdbuf"})
"""Those that set variables for the program."""
_FOLDERS = ("", "/bin/", "/usr/bin/")
_BECOMES = re.compile(
    "|".join(f"({'|'.join(_FOLDERS)}){name}{_END}{between}" for name, between in _BECOME.items())
)


def bootstrapped(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Returns `argv` with the bootstrap before the program, if it runs a Python program.

    Otherwise it returns `argv` unchanged. The second value says why a Python program gets no
    bootstrap; None: it gets one, or `argv` runs no Python program.
    """
    first = _interpreter(argv)
    if first is None:
        return list(argv), None
    index = first + 1
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
            if letter in PYTHON_OPTIONS_WITH_VALUE:
                values = 1 if place == len(option) - 1 else 0
                break
            if letter not in PYTHON_FLAGS:
                return list(argv), _unknown(option)
        index += 1 + values
    if index >= len(argv):
        return list(argv), "Python reads the program from standard input"
    return [*argv[:index], START, *argv[index:]], None


def sets_variables(argv: Sequence[str]) -> str | None:
    """Returns the command at the beginning of `argv` that sets variables and then becomes the
    interpreter (`env A=1 python ...`); None: there is none."""
    before = argv[: _interpreter(argv) or 0]
    return next((word for word in before if Path(word).name in _SETTING), None)


def from_interpreter(argv: Sequence[str]) -> list[str]:
    """Returns `argv` without the commands that become the interpreter (`nice`), as a process needs
    it that has become the interpreter already."""
    return list(argv[_interpreter(argv) or 0 :])


def interpreter_words(argv: Sequence[str]) -> list[str]:
    """Returns the beginning of `argv`, up to the Python interpreter; empty: it runs no Python
    program."""
    index = _interpreter(argv)
    return [] if index is None else list(argv[: index + 1])


def has_bootstrap(argv: Sequence[str]) -> bool:
    """True if the bootstrap is on the command line `argv`."""
    return START in argv


def script_of(argv: Sequence[str]) -> int | None:
    """Returns the index in `argv` of the script that a shell or Python runs; None: it runs none."""
    if is_shell(argv[0]):
        return 1 if len(argv) > 1 and not argv[1].startswith(("-", "+")) else None
    words, _ = bootstrapped(argv)
    if START not in words:
        return None
    index = words.index(START)  # the program stands behind it
    behind = len(words) - index - 1
    return None if words[index + 1].startswith(("-c", "-m")) else len(argv) - behind


def interpreter_part(argv: Sequence[str]) -> int:
    """Returns how many arguments come before the program, including the bootstrap; all of them if
    there is no bootstrap.

    These arguments decide how the interpreter is set up, so a standby must be started with them.
    The others can be sent to a standby later.
    """
    return argv.index(START) + 1 if has_bootstrap(argv) else len(argv)


def _interpreter(argv: Sequence[str]) -> int | None:
    """Returns the index of the Python interpreter in `argv`, behind the commands that become it;
    None: `argv` runs no Python program."""
    index = 0
    words = "".join(f"{word}{_END}" for word in argv)
    while match := _BECOMES.match(words):
        index += match[0].count(_END)
        words = words[match.end() :]
    if index == len(argv):
        return None
    name = argv[index]
    return index if is_cpython(name) or name == sys.executable else None


def _unknown(option: str) -> str:
    return f"the bootstrap does not support Python's option {option}"
