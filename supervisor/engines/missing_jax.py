"""Looks, before a launch, whether the interpreter of a program can import the jax that it needs.

A program may be started with another interpreter than its author's: `python` of the system, or of
the environment in which supervise is installed. It then fails at once, and the error names no
interpreter. Only a script whose own imports need jax is looked at: others may do without.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from supervisor.config import placeholders
from supervisor.config.plan import PhasePlan
from supervisor.engines.python_program import interpreter_words, script_of
from supervisor.engines.script_imports import read_script, required_packages
from supervisor.protocol.environment import without_supervisor_variables

_NEED_JAX = frozenset({"jax", "flax", "haiku", "kauldron", "levanter", "optax", "orbax", "tunix"})
"""Packages that import jax."""
_MISSING = 99
"""Exit code of `_LOOK`; an interpreter that cannot run it ends with another one."""
_LOOK = f"""\
import sys
from importlib.util import find_spec
sys.path[0] = sys.argv[1]
sys.exit({_MISSING} if find_spec("jax") is None else 0)
"""
"""Finds jax without importing it. The first place to look is the script's folder, as for a
script."""
_TIMEOUT = 5.0
"""Seconds for the interpreter to answer: it takes about 50 ms."""


def missing_jax(plan: PhasePlan, environ: Mapping[str, str]) -> str | None:
    """Returns a warning if the script of a command needs jax, and its interpreter has none.

    None: it has jax, or the program is no such script, or this cannot be found out.
    """
    interpreter, index = interpreter_words(plan.argv), script_of(plan.argv)
    if not interpreter or index is None:
        return None
    words = [*interpreter, plan.argv[index]]
    variables = {**without_supervisor_variables(environ), **plan.secrets, **plan.env}
    if any(placeholders.names(text) for text in (*words, *plan.env.values())):
        return None
    tree = read_script(Path(plan.argv[index]))
    if tree is None or not (needed := _NEED_JAX & required_packages(tree)):
        return None
    folder = str(Path(plan.argv[index]).absolute().parent)
    try:
        done = subprocess.run(
            [*interpreter, "-c", _LOOK, folder],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # the launch itself tells what is wrong
    if done.returncode != _MISSING:
        return None
    script, python = plan.argv[index], shutil.which(interpreter[-1], path=variables.get("PATH"))
    return (
        f"{script} imports {', '.join(sorted(needed))}, but its interpreter finds no jax: "
        f"{python}; name the interpreter of your environment, as in .venv/bin/python {script}, or "
        f"install jax there: {python} -m pip install jax"
    )
