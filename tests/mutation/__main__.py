"""`python -m tests.mutation [MODULE ...]`: the score of the fast tests, and the mutants that
survive.

The modules are all of `supervisor.core` and `supervisor.diagnosis`, and those of other packages
that decide too (`BESIDES`). `rules` stands for the table of rules, which is data: this process
judges each of its mutants itself.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import hypothesis  # noqa: F401  # loaded once, before the forks
import pydantic  # noqa: F401

from tests.mutation.mutants import Mutant, mutants
from tests.mutation.run_one import JUDGING, OWN_TESTS, noticed

Task = tuple[str, Mutant | None]
"""A mutant of a module; None: the unchanged module."""

PACKAGES = ("core", "diagnosis")
BESIDES = (
    "engines/save_place",
    "engines/telling_names",
    "engines/checkpoint_search",
    "checkpoints/formats",
    "checkpoints/streams",
)
"""The modules of other packages that decide too."""


def _modules() -> dict[str, Path]:
    found = [path for name in PACKAGES for path in Path("supervisor", name).glob("[a-z]*.py")]
    found += [Path("supervisor", f"{name}.py") for name in BESIDES]
    return {path.stem: path for path in sorted(found)}


MODULES = _modules()
"""The files of the modules that are mutated, by their names."""

_TIMEOUT = 600
"""Seconds; the machine may be busy with other things."""

_GOAL = 0.95


def main() -> int:
    """Run the command line. Returns 1 if the score is below the goal."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", default=(*MODULES, "rules"), metavar="MODULE")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N mutants of a module")
    parser.add_argument(
        "--quick", action="store_true", help="of what judges: only the tests that take seconds"
    )
    options = parser.parse_args()
    modules = [module for module in options.modules if module != "rules"]
    if unknown := set(modules) - MODULES.keys():
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    todo: list[Task] = [
        (_full_name(module), mutant)
        for module in modules
        for mutant in _chosen(mutants(MODULES[module].read_text()), options.sample)
    ]
    if options.list:
        for task in todo:
            print(_line(*task))
        return 0
    one_of_each = {
        OWN_TESTS.get(module, (module in JUDGING,)): _full_name(module) for module in modules
    }
    unchanged: list[Task] = [(name, None) for name in one_of_each.values()]
    failed = dict(_noticed(unchanged, quick=options.quick))
    if any(failed.values()):
        print("the tests fail without any mutant, so a score would mean nothing")
        return 2
    total, survivors = len(todo), 0
    survive: Counter[str] = Counter()
    left = Counter(name for name, _ in todo)
    tried = dict(left)
    for (name, mutant), was_noticed in _noticed(list(todo), quick=options.quick):
        if not was_noticed:
            survivors += 1
            survive[name] += 1
            print(f"SURVIVES {_line(name, mutant)}", flush=True)
        left[name] -= 1
        if not left[name]:
            print(f"{name}: {tried[name] - survive[name]} of {tried[name]} noticed", flush=True)
    if "rules" in options.modules:
        of_rules, surviving = _rules()
        total, survivors = total + of_rules, survivors + surviving
    killed = total - survivors
    print(f"{killed} of {total} mutants were noticed: {killed / total:.1%}")
    return 0 if killed >= _GOAL * total else 1


def _chosen(found: list[Mutant], most: int | None) -> list[Mutant]:
    """Return all mutants, or at most `most` of them, always the same ones."""
    if most is None or len(found) <= most:
        return found
    return random.Random(most).sample(found, most)


def _rules() -> tuple[int, int]:
    """Return the number of mutants of the rules, and the number of those that survive."""
    from tests.mutation import rules  # imports what is mutated, so only after the forks

    found, survivors = list(rules.mutants()), 0
    for mutant in rules.survivors(found, rules.known()):
        survivors += 1
        print(f"SURVIVES rule {mutant.name}: {mutant.what}", flush=True)
    return len(found), survivors


def _full_name(module: str) -> str:
    return ".".join(MODULES[module].with_suffix("").parts)


def _line(name: str, mutant: Mutant | None) -> str:
    file = f"{name.replace('.', '/')}.py"
    if mutant is None:
        return file
    return f"{file}:{mutant.line} {mutant.function} [{mutant.number}] {mutant.what}"


def _noticed(todo: list[Task], *, quick: bool) -> Iterator[tuple[Task, bool]]:
    """Try all tasks, as many at once as there are cores; yields each task, and True if the tests
    noticed its mutant.

    Every mutant gets a fork of this process, which has imported pytest and hypothesis but nothing
    that is mutated.
    """
    running: dict[int, Task] = {}
    while todo or running:
        while todo and len(running) < (os.cpu_count() or 1):
            task = todo.pop(0)
            pid = os.fork()
            if pid == 0:
                _try(task, quick=quick)
            running[pid] = task
        pid, status = os.wait()
        yield running.pop(pid), status != 0


def _try(task: Task, *, quick: bool) -> NoReturn:
    """Try one task in the child; exits with 0 if no test notices the mutant."""
    signal.alarm(_TIMEOUT)  # a mutant that runs for ever counts as noticed
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    code = 1
    try:
        name, mutant = task
        code = int(noticed(name, mutant.number if mutant is not None else None, quick=quick))
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
