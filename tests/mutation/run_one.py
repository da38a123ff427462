"""Runs the fast tests against one mutant. It needs a process of its own: the mutant stays
loaded."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from tests.mutation.mutants import mutated

_FIRST_SEEDS, _ALL_SEEDS = 25, 250
"""Seeds of the simulation: the first `_FIRST_SEEDS` run before the unit tests, because they notice
most mutants, and those up to `_ALL_SEEDS` after them."""
_TESTS = ["tests/core", "tests/diagnosis", "tests/config/test_changes.py"]
JUDGING = (
    "rootcause",
    "chain",
    "traceback_text",
    "native_text",
    "faulthandler_text",
    "line_forms",
    "line_prefix",
    "log_lines",
    "survival",
    "statements",
    "message_codes",
    "hints",
    "structured_codes",
    "speakers",
    "ownership",
    "signature",
    "comparing",
    "certainty",
    "fitting",
    "guesses",
    "digest",
    "examples",
    "explanation",
    "weighing",
    "verdicts",
    "crash",
    "doubt",
    "frames",
    "launcher_table",
    "own_values",
    "random_words",
    "searching",
    "signals",
    "stores",
    "success",
)
"""The modules that read a log and judge it: their own tests notice more than runs of the
simulation."""
_QUICK_TESTS = (
    "rules_reached",
    "certain",
    "certain_after",
    "rootcause",
    "hints",
    "structured_codes",
    "fitting",
    "speakers",
    "signature",
    "judging_parts",
)
_SLOWER_TESTS = (
    "words",
    "verdicts",
    "judgement",
    "guesses",
    "aborts",
    "examples",
    "where",
    "hang_failure",
)
_SLOWEST_TESTS = ("phrases", "explanation", "digest", "statements")
_CORPUS = ["tests/corpus/test_corpus.py", "tests/corpus/test_staged.py", "tests/corpus/test_io.py"]
_SHAPES = [
    "tests/corpus/test_shapes.py",
    "tests/corpus/test_signatures.py::test_another_cause_has_another_signature",
]
OWN_TESTS: Mapping[str, tuple[str, ...]] = {
    "cache_trust": ("adapters/test_shared_programs.py",),
    "checkpoint_search": ("engines/test_checkpoint_search.py", "engines/test_checkpoint_finder.py"),
    "clock_jump": ("core/test_clock_jump.py",),
    "formats": ("checkpoints/test_formats.py", "checkpoints/test_completeness.py"),
    "idleness": ("core/test_work_done.py",),
    "losses": ("core/test_losses.py", "engines/test_loss_watch.py"),
    "pipes": ("core/test_surviving.py", "adapters/test_pipes.py"),
    "retention": ("core/test_retention.py",),
    "save_place": ("engines/test_save_place.py",),
    "search_time": ("core/test_search_time.py",),
    "settling": ("core/test_settling.py",),
    "step_lines": ("diagnosis/test_step_recogniser.py", "engines/test_step_recognition.py"),
    "step_recogniser": ("diagnosis/test_step_recogniser.py", "engines/test_step_recognition.py"),
    "streams": ("checkpoints/test_formats.py", "checkpoints/test_completeness.py"),
    "telling_names": ("engines/test_telling_names.py",),
    "unseen_saves": ("core/test_unseen_saves.py",),
}
"""The tests of the modules that neither `core.machine.step` nor the judging uses."""
_WITHOUT_PROCESSES = ["-m", "not slow", "-k", "not report and not table"]
"""Leaves out tests that start a process, because that process runs the unchanged program."""


class _Loader(importlib.abc.InspectLoader):
    """Loads a module in its changed form."""

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
    """Whether none of these seeds finds a violation."""
    from tests.simulation.__main__ import play  # only once the mutant is installed

    return all(play(seed).violation is None for seed in range(first, until))


def noticed(module: str, number: int | None, *, quick: bool = False) -> bool:
    """Whether the tests notice a mutant of `module`, which nothing may have imported yet. `number`
    None: the unchanged module. `quick`: run only the tests that take seconds."""
    if number is not None:
        sys.meta_path.insert(0, _Finder(module, number))
    name = module.rpartition(".")[2]
    if name in OWN_TESTS:
        return not _pass([f"tests/{path}" for path in OWN_TESTS[name]])
    if name in JUDGING:
        return not all(_pass(tests) for tests in judging_tests(name, quick=quick))
    return not (survives(0, _FIRST_SEEDS) and _pass(_TESTS) and survives(_FIRST_SEEDS, _ALL_SEEDS))


def judging_tests(name: str, *, quick: bool = False) -> list[list[str]]:
    """Return the tests about judging, in portions: the module's own, the quick ones, then the
    others."""
    own, first, then, last = (
        [path for each in names for path in _tests(each)]
        for names in ((name,), _QUICK_TESTS, _SLOWER_TESTS, _SLOWEST_TESTS)
    )
    corpus, shapes = [*_WITHOUT_PROCESSES, *_CORPUS], [*_WITHOUT_PROCESSES, *_SHAPES]
    slow = [] if quick else [then, corpus, shapes, last]
    return [*([own] if own else []), first, *slow]


def _tests(name: str) -> list[str]:
    """Return the test file for this name, if there is one."""
    return [str(path) for path in sorted(Path("tests").glob(f"[cd]*/test_{name}.py"))]


def _pass(tests: list[str]) -> bool:
    quiet = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    return pytest.main([*quiet, *tests]) == pytest.ExitCode.OK
