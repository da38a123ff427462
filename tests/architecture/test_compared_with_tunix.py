"""What docs/explanation/determinism.md says beside Tunix is shown by tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.test_contributing import defined

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/explanation/determinism.md").read_text(encoding="utf-8")
_BREAKS, _CASES = 8 + 1, 8
"""Eight breaks, and one case of the matrix that no kill shows."""


def rows(name: str) -> list[list[str]]:
    """The last cell of each row of the table, as names."""
    table = TEXT.partition(f"<!-- tunix: {name} -->\n")[2].partition("<!-- end -->")[0]
    _, _, *lines = table.splitlines()
    return [re.findall(r"`([^`]+)`", line.split("|")[-2]) for line in lines]


@pytest.mark.parametrize("place", sorted({each for row in rows("breaks") for each in row}))
def test_each_test_is_there(place: str) -> None:
    path, _, name = place.partition(":")
    assert name.startswith("test_")
    assert name in defined(ROOT / path)


def test_each_break_and_each_case_has_tests() -> None:
    assert [bool(row) for row in rows("breaks")] == [True] * _BREAKS
    assert [bool(row) for row in rows("matrix")] == [True] * _CASES


def test_each_kind_is_killed_in_the_matrix() -> None:
    matrix = (ROOT / "tests/end_to_end/test_kill_matrix.py").read_text(encoding="utf-8")
    kinds = set(re.findall(r'^    "([\w-]+)": \{', matrix, re.M))
    assert {"grpo", "lora"} < kinds
    assert {each for row in rows("matrix") for each in row} <= kinds
