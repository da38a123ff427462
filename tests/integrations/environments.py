"""Builds the environment that a program names in its head (PEP 723): once, below `.integrations`.

The folder has the digest of what was asked for in its name, so a program whose head changes gets a
new one. A lock beside it lets one test build it while others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.integrations.programs import ROOT, Program

PLACE = ROOT / ".integrations"
_STAMP = ".installed"
"""Is written last. An environment without it is built again."""
_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""As PEP 723 gives it."""
_ASK = "import sys; print(sys.executable, '{}.{}'.format(*sys.version_info), sep='\\n')"


class MissingPythonError(Exception):
    """The version of Python that a program needs is not on this machine."""


def metadata(script: Path) -> dict[str, Any]:
    """Read the metadata in the head of a program; empty: it has none, and needs no library."""
    found = _BLOCK.search(script.read_text(encoding="utf-8"))
    if found is None:
        return {}
    lines = found["content"].splitlines()
    return tomllib.loads("\n".join(line.removeprefix("#").removeprefix(" ") for line in lines))


def dependencies(program: Program) -> list[str]:
    """Return the requirements of a program."""
    return [str(each) for each in metadata(program.path).get("dependencies", ())]


def command(program: Program) -> list[str]:
    """Return the command line of a program; its environment is built if it is not there."""
    return [_interpreter(program), str(program.path), *program.arguments]


def variables(program: Program) -> dict[str, str]:
    """Return the variables that a program runs with: on the CPU, without the network, with the
    commands of its environment first, and without XLA's flags of our own tests, which another
    version of JAX does not know."""
    bin_folder = str(Path(_python(program)).parent)
    return {
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "XLA_FLAGS": "",
        "PATH": os.pathsep.join((bin_folder, os.environ["PATH"])),
    }


def _interpreter(program: Program) -> str:
    return "bash" if program.path.suffix == ".sh" else _python(program)


def _python(program: Program) -> str:
    """Return the interpreter of the environment that has the libraries of a program."""
    wanted = dependencies(program)
    return sys.executable if program.in_ci or not wanted else str(_built(program, wanted))


def _built(program: Program, wanted: list[str]) -> Path:
    version = ".".join(map(str, program.python))
    digest = hashlib.sha256("\n".join((version, *sorted(wanted))).encode()).hexdigest()
    place = PLACE / digest[:12]
    PLACE.mkdir(exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / _STAMP).exists():
            _build(place, version, wanted)
    return place / "bin" / "python"


def _build(place: Path, version: str, wanted: list[str]) -> None:
    interpreter = find_interpreter(version, os.environ["PATH"])
    if interpreter is None:
        raise MissingPythonError(f"no Python {version} answers in PATH: install it to run this")
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", "--without-pip", str(place)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *quiet, *wanted], check=True)
    (place / _STAMP).touch()


def find_interpreter(version: str, path: str) -> str | None:
    """Return the first interpreter of this version in the folders of `path` that runs.

    A shim of pyenv has the name of every version that is installed, and runs only those that are
    selected. So each is asked where its interpreter is, with this version selected.
    """
    selected = {**os.environ, "PYENV_VERSION": version}
    for folder in path.split(os.pathsep):
        command = shutil.which(f"python{version}", path=folder)
        if command is None:
            continue
        asked = subprocess.run([command, "-c", _ASK], env=selected, capture_output=True, text=True)
        real, _, its_version = asked.stdout.strip().partition("\n")
        if asked.returncode == 0 and its_version == version:
            return real
    return None
