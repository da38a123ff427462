"""When an attempt has recovered, so that what is prepared for the next one is in nobody's way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.settling import TRAINS_FOR, Settling
from supervisor.protocol.messages import Stage

RECOVERING = [stage for stage in Stage if stage is not Stage.TRAINING]
SECONDS = st.floats(0, 1000)


def is_over(settling: Settling, at: float) -> bool:
    return settling.is_over(at, has_stepped=False, has_committed=False)


@given(st.lists(st.tuples(st.sampled_from(Stage), SECONDS), min_size=1), SECONDS)
def test_it_is_over_after_a_minute_in_the_stage_of_training(
    stages: list[tuple[Stage, float]], before: float
) -> None:
    now, trained, settling = before, 0.0, Settling(0.0)
    for stage, seconds in stages:
        settling = settling.entered(stage, now)
        now += seconds
        trained += seconds if stage is Stage.TRAINING else 0.0
        if abs(trained - TRAINS_FOR) > 0.001:
            assert is_over(settling, now) == (trained > TRAINS_FOR)


@given(st.sampled_from(RECOVERING), SECONDS)
def test_a_step_or_a_commit_is_enough(stage: Stage, at: float) -> None:
    settling = Settling(0.0).entered(stage, 0.0)
    assert not is_over(settling, at)
    assert settling.is_over(at, has_stepped=True, has_committed=False)
    assert settling.is_over(at, has_stepped=False, has_committed=True)


def test_a_program_that_names_no_stage_may_train_from_its_start() -> None:
    assert not is_over(Settling(7.0), 7.0 + TRAINS_FOR - 1)
    assert is_over(Settling(7.0), 7.0 + TRAINS_FOR)


def test_a_long_start_before_the_first_stage_was_no_training() -> None:
    settling = Settling(0.0).entered(Stage.TRAINING, 500.0)
    assert not is_over(settling, 501.0)
    assert is_over(settling, 500.0 + TRAINS_FOR)


def test_a_clock_that_stands_still_or_steps_back_ends_nothing() -> None:
    assert not is_over(Settling(100.0).entered(Stage.TRAINING, 100.0), 0.0)


def test_many_short_stages_are_no_minute() -> None:
    settling, now = Settling(0.0), 0.0
    for _ in range(100):
        settling = settling.entered(Stage.TRAINING, now).entered(Stage.SAVING, now + 0.1)
        now += 1.0
    assert not is_over(settling, now)
