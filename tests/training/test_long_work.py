"""What takes long between two steps is told, and what does not is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from supervisor.protocol.messages import Stage, StageMessage, decode
from supervisor.protocol.reporter import Reporter
from trainer.long_work import told_if_long


@pytest.fixture
def pipe() -> Iterator[tuple[Reporter, Callable[[], object]]]:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with os.fdopen(read_end, "rb") as told:
        yield Reporter(write_end), lambda: decode(told.readline().rstrip())
        os.close(write_end)


def test_long_work_is_a_stage_of_its_own(pipe: tuple[Reporter, Callable[[], object]]) -> None:
    reporter, told = pipe
    with told_if_long(reporter, 3, after=0.001):
        assert told() == StageMessage(Stage.EVALUATING, 3)
    assert told() == StageMessage(Stage.TRAINING, 3)
    with told_if_long(reporter, 4, after=1e6):
        pass
    reporter.stage(Stage.SAVING)
    assert told() == StageMessage(Stage.SAVING)


def test_what_the_work_raises_is_raised(pipe: tuple[Reporter, Callable[[], object]]) -> None:
    with pytest.raises(ZeroDivisionError), told_if_long(pipe[0], 3):
        _ = 1 / 0
