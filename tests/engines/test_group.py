"""What is known of the steps of a worker group: reports come before what is recognised."""

from __future__ import annotations

from typing import Any, cast

from supervisor.core.settling import Settling
from supervisor.engines.group import Member, WorkerGroup
from supervisor.protocol.messages import (
    Message,
    Stage,
    StageMessage,
    StepMessage,
    StepsDroppedMessage,
)


def recognised(step: int, first: int | None = None, every: int | None = None) -> StepMessage:
    return StepMessage(step, first=first, in_output=True, recognised=True, every=every)


class Heard:
    """A group of one worker, and what is passed on of its messages."""

    def __init__(self) -> None:
        nothing = cast(Any, None)
        self.worker = Member(0, nothing, nothing, nothing, None, nothing, nothing)
        self.group = WorkerGroup(
            nothing, nothing, nothing, nothing, lambda: 0, [], Settling(0.0), workers=[self.worker]
        )

    def reported(self) -> int | None:
        return self.group.reported_step

    def says(self, *messages: Message) -> list[Message]:
        return [each for each in messages if self.group.note_message(self.worker, each, 0.0)]


def test_a_recognised_step_counts_until_one_is_reported() -> None:
    heard = Heard()
    assert len(heard.says(recognised(8, first=3, every=1))) == 1
    assert (heard.group.step, heard.group.starting_step) == (8, 2)
    assert heard.reported() is None
    assert heard.worker.reports == 0, "its pipe is read at once, and it has not recovered yet"

    heard.says(StepMessage(5))
    assert (heard.group.step, heard.group.starting_step) == (5, None), "perhaps each fifth is told"
    assert heard.says(recognised(9)) == [], "none is passed on any more"
    assert heard.group.step == 5


def test_a_program_that_tells_each_fifth_step_did_not_begin_at_the_step_before() -> None:
    heard = Heard()
    heard.says(recognised(25, first=5, every=5))
    assert heard.group.starting_step is None
    heard.group.committed = 3
    assert heard.group.starting_step == 3


def test_a_stage_may_tell_the_step() -> None:
    heard = Heard()
    heard.says(recognised(8), StageMessage(Stage.SAVING))
    assert heard.reported() is None
    heard.says(StageMessage(Stage.SAVING, 4))
    assert (heard.reported(), heard.group.step) == (4, 4)


def test_a_step_that_was_dropped_is_forgotten() -> None:
    heard = Heard()
    heard.says(recognised(8), StepsDroppedMessage())
    assert (heard.group.step, heard.group.starting_step) == (None, None)
    heard.says(StepMessage(5), StepsDroppedMessage())
    assert heard.group.step == 5


def test_it_is_no_report_after_which_silence_is_measured() -> None:
    heard = Heard()
    heard.worker.has_spoken = False
    heard.says(recognised(8))
    assert not heard.worker.has_spoken
