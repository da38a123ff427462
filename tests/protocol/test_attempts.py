"""The folders of attempts: their names, and the order in which attempts were started."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.files.attempts import attempt_folder, attempt_of, attempts_in_order


@given(st.lists(st.integers(1, 10**6), unique=True))
def test_the_order_is_that_of_the_numbers(numbers: list[int]) -> None:
    names = [attempt_folder(number).removeprefix("attempts/") for number in numbers]
    assert [attempt_of(name) for name in attempts_in_order(names)] == sorted(numbers)


def test_it_is_not_that_of_the_names() -> None:
    assert attempts_in_order(["10000", "9999", "1001"]) == ["1001", "9999", "10000"]


@pytest.mark.parametrize(
    "name",
    ["1", "001", "00001", "prefetch4", "standby.log", "", "\u0660\u0660\u0660\u0661", "-001"],
)
def test_other_names_are_nobodys(name: str) -> None:
    assert attempt_of(name) is None
    assert attempts_in_order([name, "0001"]) == ["0001"]
