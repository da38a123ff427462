"""Recognises a Python program on a command line, and puts the bootstrap in front of it.

The interpreter and its options stay as they are. The file `supervisor/bootstrap/start.py` takes the
place of the program, and finds the program behind it on the command line.

A command such as `nice`, which sets something up and then execs the program in the same process,
may stand before the interpreter. It passes the bootstrap's variables and descriptors on. So does a
shell whose `-c` is one command of plain words (`bash -lc "python train.py --lr 1"`): it gets the
words as arguments, and becomes the program.
"""

from __future__ import annotations

import re
import shlex
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
_SHELL_OPTIONS = re.compile(rf"(-[elu]+{_END}|-o{_END}pipefail{_END})*-[elu]*c[elu]*{_END}")
"""The options of a shell, up to the text of its `-c`. An interactive shell may have an alias for
Python."""
_PLAIN_TEXT = re.compile(r"""([\w@%+=:,./ -]|'[^']*'|"[^"$`\\!]*")+""")
"""A shell's text in which each word stands for itself: no variable, operator, pattern or line."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_RUN_WORDS = '"$0" "$@"'
"""The text with which a shell runs the command that its arguments are. It becomes that command, or
calls a function of that name, or has a trap for its end: as it would with the user's text."""
_EXEC = "exec"


def bootstrapped(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Returns `argv` with the bootstrap before the program, if it runs a Python program.

    Otherwise it returns `argv` unchanged. The second value says why a Python program gets no
    bootstrap; None: it gets one, or `argv` runs no Python program.
    """
    in_shell = _in_shell(argv)
    if in_shell is None:
        return _bootstrapped(argv)
    before, words = in_shell
    inner, why_not = _bootstrapped(words)
    return ([*before, *inner], None) if START in inner else ([*argv], why_not)


def _bootstrapped(argv: Sequence[str]) -> tuple[list[str], str | None]:
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


def shell_before(argv: Sequence[str]) -> str | None:
    """Returns the shell that becomes the interpreter (`bash -c "python train.py"`); None: there is
    none."""
    in_shell = _in_shell(argv)
    if in_shell is None or _interpreter(in_shell[1]) is None:
        return None
    return Path(argv[_becoming(argv)]).name


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
    if START not in words or shell_before(argv) is not None:
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
    index = _becoming(argv)
    if index == len(argv):
        return None
    name = argv[index]
    return index if is_cpython(name) or name == sys.executable else None


def _becoming(argv: Sequence[str]) -> int:
    """Returns how many words at the beginning of `argv` are commands that become the one behind
    them, with their options."""
    index = 0
    words = _joined(argv)
    while match := _BECOMES.match(words):
        index += match[0].count(_END)
        words = words[match.end() :]
    return index


def _in_shell(argv: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """Returns what has a shell run the command behind it, in place of the text of its `-c` in
    `argv`, and the command that this text is; None: there is no such text, or it may mean more than
    its words say."""
    shell = _becoming(argv)
    if shell == len(argv) or not is_shell(argv[shell]):
        return None
    options = _SHELL_OPTIONS.match(_joined(argv[shell + 1 :]))
    place = shell + 1 + options[0].count(_END) if options is not None else len(argv)
    if place != len(argv) - 1 or _PLAIN_TEXT.fullmatch(argv[place]) is None:
        return None
    words = shlex.split(argv[place])
    if words[:1] == [_EXEC]:
        return [*argv[:place], f"{_EXEC} {_RUN_WORDS}"], words[1:]
    if _ASSIGNMENT.match(argv[place].lstrip()) is not None:
        words = ["env", *words]
    return [*argv[:place], _RUN_WORDS], words


def _joined(argv: Sequence[str]) -> str:
    return "".join(f"{word}{_END}" for word in argv)


def _unknown(option: str) -> str:
    return f"the bootstrap does not support Python's option {option}"
