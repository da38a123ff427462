"""Twenty lines of a kind at once, and few in the long run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.allowance import Allowance


@given(st.floats(0, 1e6), st.lists(st.floats(0, 20), max_size=200))
def test_a_flood_is_cut_and_little_is_not(began: float, waits: list[float]) -> None:
    allowance, now, taken = Allowance(), began, 0
    for number, wait in enumerate(waits):
        now += wait
        allowed, allowance = allowance.take(now)
        taken += allowed
        assert allowed or number >= 20
        assert taken <= 20 + (now - began) / 10 + 1e-6
    assert allowance.take(now + 10)[0]
