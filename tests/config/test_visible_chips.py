"""What TPU_VISIBLE_CHIPS shows of the chips that a job is to have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.topology import SliceShape
from supervisor.config.visible_chips import variable, visible_chips_problem

V5E, V5P = SliceShape("v5e", 8), SliceShape("v5p", 4)


@pytest.mark.parametrize(
    ("text", "count", "tpu"),
    [
        ("0,1,2,3,4,5,6,7", 8, V5E),
        (" 3 , 2,1,0", 4, V5P),
        ("4,5,6,7", 4, SliceShape("v5e", 4)),
        ("7", 1, None),
        ("0,1,2,3", None, SliceShape("v5e", 16)),
    ],
)
def test_what_can_be_used(text: str, count: int | None, tpu: SliceShape | None) -> None:
    assert visible_chips_problem(text, count, tpu) is None


@pytest.mark.parametrize(
    ("text", "count", "tpu", "says"),
    [
        ("", None, None, "is empty, which names no chip: unset it"),
        ("9,a,-1", None, None, "has '9', which is no chip of a TPU host: give indices from 0 to 7"),
        ("0,a", 1, V5E, "has 'a'"),
        ("0,-1", 1, V5E, "has '-1'"),
        ("0,,1", 2, V5E, "has ''"),
        ("4", 1, V5P, "give indices from 0 to 3"),
        ("0,0", 2, V5E, "names chip 0 twice"),
        ("0,1,2,3", 8, V5E, "shows 4 of the 8 chips"),
    ],
)
def test_what_cannot_is_told_with_its_remedy(
    text: str, count: int | None, tpu: SliceShape | None, says: str
) -> None:
    assert says in (visible_chips_problem(text, count, tpu) or "")


@given(st.text(max_size=20), st.integers(1, 8))
def test_any_text_has_an_answer(text: str, count: int) -> None:
    assert visible_chips_problem(text, count, V5E) or len(text.split(",")) >= count


def test_the_older_name_counts_where_the_newer_is_not_set() -> None:
    assert variable({}) == "TPU_VISIBLE_CHIPS"
    assert variable({"TPU_VISIBLE_DEVICES": "0"}) == "TPU_VISIBLE_DEVICES"
    assert variable({"TPU_VISIBLE_DEVICES": "0", "TPU_VISIBLE_CHIPS": "1"}) == "TPU_VISIBLE_CHIPS"
