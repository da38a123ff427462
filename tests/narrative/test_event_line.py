"""The words that many lines have in common."""

from __future__ import annotations

import pytest

from supervisor.narrative.event_line import count


@pytest.mark.parametrize(
    ("number", "thing", "told"),
    [(1, "step", "1 step"), (2, "step", "2 steps"), (1, "loss", "1 loss"), (0, "loss", "0 losses")],
)
def test_a_number_has_its_noun(number: int, thing: str, told: str) -> None:
    assert count(number, thing) == told
