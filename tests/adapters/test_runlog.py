"""run.log tells what matters, however much a worker says."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from supervisor.adapters.stores.storage import LocalStorage
from supervisor.adapters.telling.runlog import RunLog
from supervisor.core.events import Event, WorkerReported, WorkersGone, WorkersObserved
from supervisor.core.machine import step
from supervisor.diagnosis.failure import WorkerExit
from supervisor.narrative import Level
from supervisor.narrative.rendered import with_lines
from supervisor.ports import Transition
from supervisor.protocol.messages import Stage, StageMessage
from tests.core.history import RETRY, History, policy


class Told:
    """A job in its first attempt, and the lines that are told of it."""

    def __init__(self, model_dir: Path) -> None:
        history = History(policy())
        history.starts()
        history.runs()
        self.state = history.state
        self.time = 0.0
        self.lines: list[str] = []
        (model_dir / "phase0").mkdir()
        self._log = RunLog(LocalStorage(model_dir), self, self._shown)

    def _shown(self, line: str, level: Level) -> None:
        self.lines.append(line)

    def now(self) -> float:
        return self.time

    def wall(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    def happens(self, event: Event) -> None:
        before = self.state
        self.state, decisions = step(before, event, policy())
        turn = Transition(event, before, self.state, decisions, self.wall())
        self._log.observe(with_lines(turn, policy()))

    def enters(self, *stages: Stage) -> None:
        for stage in stages:
            message = StageMessage(stage)
            self.happens(WorkerReported(self.time, self.state.attempt, 0, message))

    def fails(self) -> None:
        attempt = self.state.attempt
        ended = (WorkerExit(0, code=1),)
        self.happens(WorkersObserved(self.time, attempt, (1000,), ended))
        self.happens(WorkersGone(self.time, attempt, RETRY, None, None, None))

    def count(self, text: str) -> int:
        return sum(line.endswith(f"] {text}") for line in self.lines)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_a_flood_of_one_kind_hides_no_other(told: Told) -> None:
    told.enters(*[Stage.COMPILING, Stage.FINISHING] * 200, Stage.RESTORING)
    assert told.count("stage COMPILING") == told.count("stage FINISHING") == 20
    assert told.count("stage RESTORING") == 1
    told.time = 100.0
    told.enters(*[Stage.COMPILING, Stage.FINISHING] * 200)
    assert told.count("stage COMPILING") == 30, "in the long run one in ten seconds"


def test_what_was_left_out_is_counted_now_and_then_and_in_the_end(told: Told) -> None:
    for told.time in (0.0, 1.0, 59.0, 61.0):
        told.enters(*[Stage.COMPILING, Stage.FINISHING] * 100)
    counted = [line for line in told.lines if "more reports" in line]
    assert len(counted) == 2
    told.fails()
    counted = [line for line in told.lines if "more reports" in line]
    assert len(counted) == 3
    shown = told.count("stage COMPILING") + told.count("stage FINISHING")
    assert sum(int(line.split()[-9]) for line in counted) + shown == 800


def test_the_next_attempt_may_say_as_much(told: Told) -> None:
    told.enters(*[Stage.COMPILING, Stage.FINISHING] * 200)
    told.fails()
    told.enters(Stage.FINISHING)
    assert told.count("stage FINISHING") == 21
