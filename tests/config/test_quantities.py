"""Sizes as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.quantities import parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("500MiB", 500 << 20),
        ("10GiB", 10 << 30),
        ("1.5 GiB", 3 << 29),
        ("2KB", 2000),
        ("3TB", 3 * 10**12),
        (" 7TiB ", 7 << 40),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "10", "GiB", "10gib", "10 G", "-1B", "1e9B", "1.B", "\u0663B"]
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as 500MiB or 10GiB"):
        parse_size(text)


@given(st.integers(0, 1 << 59))
def test_what_is_told_is_near_the_size(size: int) -> None:
    assert parse_size(size_text(size)) == pytest.approx(size, rel=0.05)
