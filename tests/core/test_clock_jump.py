"""Which movement of the clocks asks for the lease before the workers may go on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.clock_jump import LIMIT, ClockReading, jump

START = ClockReading(monotonic=1000.0, boot=5000.0, wall=1.7e9)
small = st.floats(0, LIMIT - 0.01)
large = st.floats(LIMIT + 0.01, 1e7)
pauses = st.floats(0.1, 60)


def after(passed: float, slept: float = 0.0, moved: float = 0.0) -> ClockReading:
    """What the clocks show after so many seconds, as many of sleep, and a new time of day."""
    return ClockReading(
        START.monotonic + passed, START.boot + passed + slept, START.wall + passed + moved
    )


@given(pauses, small, small, st.floats(-LIMIT + 0.01, LIMIT - 0.01))
def test_small_movements_stop_nobody(pause: float, late: float, slept: float, moved: float) -> None:
    assert jump(START, after(pause + late, slept, moved), pause) is None


@given(pauses, small, large, st.floats(-1e6, 1e6))
def test_sleep_is_always_seen(pause: float, late: float, slept: float, moved: float) -> None:
    why = jump(START, after(pause + late, slept, moved), pause)
    assert why is not None
    assert why.startswith("the machine slept for ")


@given(pauses, large)
def test_a_late_look_is_seen(pause: float, late: float) -> None:
    why = jump(START, after(pause + late), pause)
    assert why is not None
    assert why.startswith("the supervisor did not run for ")


@given(pauses, small, large, st.sampled_from([1, -1]))
def test_a_jump_of_the_wall_clock_is_seen_in_both_directions(
    pause: float, late: float, moved: float, sign: int
) -> None:
    why = jump(START, after(pause + late, moved=sign * moved), pause)
    assert why is not None
    assert why.startswith("the wall clock jumped by " + "+-"[sign < 0])


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (after(1.0, slept=60.0, moved=60.0), "the machine slept for 60 s"),
        (after(61.0), "the supervisor did not run for 60 s"),
        (after(1.0, moved=-3600.0), "the wall clock jumped by -3600 s"),
    ],
)
def test_it_is_told_in_words(now: ClockReading, why: str) -> None:
    assert jump(START, now, 1.0) == why
