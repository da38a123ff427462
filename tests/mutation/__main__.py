"""`python -m tests.mutation [MODULE ...]`: the score of the fast tests, and who survives them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import hypothesis  # noqa: F401  # loaded once, before the forks
import pydantic  # noqa: F401

from tests.mutation.mutants import Mutant, mutants
from tests.mutation.one import noticed

Task = tuple[str, Mutant]
"""A mutant of a module."""

MODULES = (
    "machine",
    "moves",
    "phases",
    "placing",
    "ladder",
    "quarantine",
    "ending",
    "stopping",
    "recovery",
    "snapshots",
    "store_faults",
    "budget",
    "backoff",
    "tactics",
    "state",
    "liveness",
    "policy",
    "failure",
    "exit_codes",
    "verdicts",
    "weighing",
    "changes",
    "redaction",
)
"""The decision logic of `supervisor.core`; the rules are data, and tested as such."""

_TIMEOUT = 300
"""Seconds, on a machine that does other things as well."""

_GOAL = 0.95


def main() -> int:
    """Run the command line; returns 1 where the score is below the goal."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES, metavar="MODULE")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    options = parser.parse_args()
    todo = [
        (name, mutant)
        for name in (f"supervisor.core.{module}" for module in options.modules)
        for mutant in mutants(_source(name).read_text())
    ]
    if options.list:
        for name, mutant in todo:
            print(_line(name, mutant))
        return 0
    total, survivors = len(todo), 0
    for (name, mutant), was_noticed in _noticed(todo):
        if not was_noticed:
            survivors += 1
            print(f"SURVIVES {_line(name, mutant)}", flush=True)
    killed = total - survivors
    print(f"{killed} of {total} mutants were noticed: {killed / total:.1%}")
    return 0 if killed >= _GOAL * total else 1


def _source(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _line(name: str, mutant: Mutant) -> str:
    file = f"{name.replace('.', '/')}.py"
    return f"{file}:{mutant.line} {mutant.function} [{mutant.number}] {mutant.what}"


def _noticed(todo: list[Task]) -> Iterator[tuple[Task, bool]]:
    """Each task and whether the tests noticed it, as they end; as many at once as there are cores.

    Every mutant gets a fork of this process, which has imported pytest and hypothesis but nothing
    of what is mutated.
    """
    running: dict[int, Task] = {}
    while todo or running:
        while todo and len(running) < (os.cpu_count() or 1):
            task = todo.pop(0)
            pid = os.fork()
            if pid == 0:
                _try(task)
            running[pid] = task
        pid, status = os.wait()
        yield running.pop(pid), status != 0


def _try(task: Task) -> NoReturn:
    """In the child: exit 0 if nobody notices the mutant."""
    signal.alarm(_TIMEOUT)  # a mutant that runs for ever is noticed, too
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    code = 1
    try:
        code = int(noticed(task[0], task[1].number))
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
