"""When people hear of a NaN in lines that decide nothing."""

from __future__ import annotations

from math import inf, nan

from supervisor.engines.shown_losses import ShownLosses
from supervisor.protocol.messages import StepMessage


def told(
    losses: ShownLosses, *values: float, attempt: int = 1, recognised: bool = True
) -> list[int]:
    """The steps, from 1 on, at which something is told."""
    heard = [
        losses.hear(attempt, StepMessage(step, {"loss": value}, recognised=recognised))
        for step, value in enumerate(values, 1)
    ]
    return [step for step, notice in enumerate(heard, 1) if notice is not None]


def test_ten_in_a_row_are_told_once() -> None:
    assert told(ShownLosses(), 0.5, *[nan] * 30) == [11]
    assert told(ShownLosses(), *[nan, inf] * 15) == [10]


def test_a_few_or_those_of_another_attempt_are_not() -> None:
    losses = ShownLosses()
    assert told(losses, *[*[nan] * 9, 0.5] * 3) == []
    assert told(losses, *[nan] * 9) == []
    assert told(losses, *[nan] * 9, attempt=2) == []


def test_a_few_at_the_end_of_an_attempt_that_ends_well_are_told() -> None:
    losses = ShownLosses()
    assert told(losses, 0.5, nan, nan) == []
    assert losses.ended(2) is None
    notice = losses.ended(1)
    assert notice is not None
    assert notice.keys == {"step": 2, "number": 2}
    for last in (0.5, *[nan] * 30):
        told(losses, last)
    assert losses.ended(1) is None, "the last one is told already"
    assert told(ShownLosses(), 0.5) == []
    assert ShownLosses().ended(1) is None


def test_of_several_steps_read_together_the_loss_is_that_of_the_last() -> None:
    losses = ShownLosses()
    assert losses.hear(1, StepMessage(20, {"loss": nan}, first=1, recognised=True)) is None
    notice = losses.ended(1)
    assert notice is not None
    assert notice.keys["step"] == 20
    assert "since step 20 or before" in notice


def test_what_is_reported_is_the_matter_of_others() -> None:
    assert told(ShownLosses(), *[nan] * 30, recognised=False) == []
