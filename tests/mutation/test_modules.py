"""Which modules are mutated, and by which tests: all that decide, whatever is added."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.__main__ import MODULES
from tests.mutation.run_one import JUDGING, OWN_TESTS, judging_tests

SUPERVISOR = Path("supervisor")


def test_every_module_that_decides_is_mutated() -> None:
    decide = [*SUPERVISOR.glob("core/[a-z]*.py"), *SUPERVISOR.glob("diagnosis/[a-z]*.py")]
    assert {path.stem for path in decide} <= MODULES.keys()
    assert len({path.stem for path in decide}) == len(decide), "a name would stand for two"
    assert all(path.is_file() for path in MODULES.values())


def test_the_tests_of_each_module_are_there() -> None:
    assert OWN_TESTS.keys() | set(JUDGING) <= MODULES.keys()
    assert not OWN_TESTS.keys() & set(JUDGING)
    paths = [Path("tests", name) for names in OWN_TESTS.values() for name in names]
    assert [path for path in paths if not path.is_file()] == []
    assert all(any(judging_tests(name)) for name in JUDGING)
