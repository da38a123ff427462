"""Where the interpreter of an environment comes from, and what a program runs with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.integrations.environments import find_interpreter, variables
from tests.integrations.programs import PROGRAMS

VERSION = "{}.{}".format(*sys.version_info)
NOTHING_SELECTED = "echo 'pyenv: command not found' >&2; exit 127"


def _folder(parent: Path, name: str, script: str) -> str:
    folder = parent / name
    folder.mkdir()
    command = folder / f"python{VERSION}"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return str(folder)


def _real(path: str | None) -> str | None:
    return path and os.path.realpath(path)


def test_a_shim_that_runs_nothing_is_passed_over(tmp_path: Path) -> None:
    shim = _folder(tmp_path, "shims", NOTHING_SELECTED)
    python = _folder(tmp_path, "bin", f'exec {sys.executable} "$@"')
    path = os.pathsep.join((shim, str(tmp_path / "missing"), python))
    assert _real(find_interpreter(VERSION, path)) == _real(sys.executable)


def test_a_shim_is_asked_for_the_version_that_it_does_not_select_itself(tmp_path: Path) -> None:
    script = f'[ "$PYENV_VERSION" = {VERSION} ] && exec {sys.executable} "$@"; {NOTHING_SELECTED}'
    shim = _folder(tmp_path, "shims", script)
    assert _real(find_interpreter(VERSION, shim)) == _real(sys.executable)


@pytest.mark.parametrize("script", [NOTHING_SELECTED, "echo elsewhere; echo 2.7"])
def test_without_an_interpreter_of_this_version_there_is_none(tmp_path: Path, script: str) -> None:
    assert find_interpreter(VERSION, _folder(tmp_path, "bin", script)) is None


def test_a_program_does_not_get_the_flags_of_our_own_tests() -> None:
    orbax = PROGRAMS[0]
    assert orbax.in_ci, "it needs no environment of its own"
    assert {"XLA_FLAGS": "--ours", **variables(orbax)}["XLA_FLAGS"] == ""
