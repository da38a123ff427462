"""Runs the fast tests against one mutant. For a process of its own: the mutant stays in it."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from tests.mutation.mutants import mutated

_FEW, _MANY = 25, 250
"""Seeds of the simulation: before the unit tests (most mutants die of them), and after."""
_TESTS = ["tests/core", "tests/config/test_changes.py"]


class _Loader(importlib.abc.InspectLoader):
    """Loads a module as it would be after the change."""

    def __init__(self, tree: ast.Module, path: str) -> None:
        self._code = compile(tree, path, "exec")

    def get_code(self, fullname: str) -> CodeType:
        return self._code

    def get_source(self, fullname: str) -> str | None:
        return None


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, number: int) -> None:
        self._name, self._number = name, number

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        tree = mutated(Path(spec.origin).read_text(), self._number)
        return importlib.util.spec_from_loader(
            fullname, _Loader(tree, spec.origin), origin=spec.origin
        )


def survives(first: int, until: int) -> bool:
    """Whether some seeds see nothing."""
    from tests.simulation.__main__ import play  # only once the mutant is in its place

    return all(play(seed).violation is None for seed in range(first, until))


def noticed(module: str, number: int) -> bool:
    """Whether the tests notice a mutant of `module`, which nothing has imported yet."""
    sys.meta_path.insert(0, _Finder(module, number))
    if not survives(0, _FEW):
        return True
    quiet = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    return pytest.main([*quiet, *_TESTS]) != pytest.ExitCode.OK or not survives(_FEW, _MANY)
