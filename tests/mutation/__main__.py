"""`python -m tests.mutation [MODULE ...]`: the score of the fast tests, and who survives them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants

MODULES = ("machine", "budget", "backoff", "state", "verdicts", "liveness")
"""The decision logic of `supervisor.core`; the rules are data, and tested as such."""

_TIMEOUT = 300.0
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
    survivors = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (name, mutant), lives in zip(todo, pool.map(_survives, todo), strict=True):
            if lives:
                survivors += 1
                print(f"SURVIVES {_line(name, mutant)}", flush=True)
    killed = len(todo) - survivors
    print(f"{killed} of {len(todo)} mutants were noticed: {killed / len(todo):.1%}")
    return 0 if killed >= _GOAL * len(todo) else 1


def _source(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _line(name: str, mutant: Mutant) -> str:
    file = f"{name.replace('.', '/')}.py"
    return f"{file}:{mutant.line} {mutant.function} [{mutant.number}] {mutant.what}"


def _survives(task: tuple[str, Mutant]) -> bool:
    name, mutant = task
    command = [sys.executable, "-m", "tests.mutation.one", name, str(mutant.number)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
