"""Writes the scripts of `supervise completion` from the parsers, by shtab.

python -m supervisor.cli.completion_scripts

The package ships what this writes, so that nobody needs shtab to complete a command.
"""

from __future__ import annotations

import argparse
from argparse import Action, ArgumentParser
from collections.abc import Iterator
from pathlib import Path

from supervisor.cli.completion import SHELLS, script_name
from supervisor.cli.main import parser_of_all_verbs

FOLDER = Path(__file__).with_name("completions")
_FILES = frozenset({"config", "place", "save_config", "alive_file", "output", "logs", "script"})
"""What names a file, by the name of the argument; `place` may be a folder too."""
_FOLDERS = frozenset({"model_dir", "folder"})


def scripts() -> dict[str, str]:
    """Returns the script for each shell, by the name of its file."""
    import shtab  # only who works on supervise has it

    parser = parser_of_all_verbs()
    for action in _actions(parser):
        if action.dest in _FILES | _FOLDERS:
            kind = shtab.FILE if action.dest in _FILES else shtab.DIRECTORY
            action.complete = kind  # type: ignore[attr-defined]
    return {script_name(shell): f"{shtab.complete(parser, shell).rstrip()}\n" for shell in SHELLS}


def _actions(parser: ArgumentParser) -> Iterator[Action]:
    """Yields the arguments of all verbs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
        else:
            yield action


if __name__ == "__main__":
    for name, text in scripts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
