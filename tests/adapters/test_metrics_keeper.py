"""What a command reports of its steps is kept: each step once, seldom, and within a bound."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.telling.metrics_keeper import LIMIT, MetricsKeeper
from supervisor.core.events import Event, WorkerReported, WorkersGone
from supervisor.core.state import JobState
from supervisor.ports import Transition
from supervisor.protocol.messages import EvaluatedMessage, StepMessage, StepsDroppedMessage
from tests.adapters.test_hostile_worker import PLAN

COMMAND = replace(PLAN, name="only", is_command=True)
WALL = datetime(2026, 1, 1, tzinfo=UTC)


class Kept:
    """A keeper and its file."""

    def __init__(self, folder: Path, limit: int = LIMIT, plan: Any = COMMAND) -> None:
        self.file = folder / "metrics.jsonl"
        self.warned: list[str] = []
        self._keeper = MetricsKeeper(
            folder,
            [plan],
            lambda text: text.replace("hunter2", "[redacted]"),
            self.warned.append,
            limit,
        )

    def take(self, event: Event) -> None:
        self._keeper.observe(Transition(event, JobState(), JobState(), (), WALL))

    def step(
        self, at: float, step: int, *, attempt: int = 1, rank: int = 0, first: int | None = None
    ) -> None:
        message = StepMessage(step, {"loss": 1 / step}, first)
        self.take(WorkerReported(at, attempt, rank, message))

    def gone(self, attempt: int = 1) -> None:
        self.take(WorkersGone(9.0, attempt, None, None, None, None))

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_bytes().splitlines()]

    @property
    def steps(self) -> list[int]:
        return [line["step"] for line in self.lines]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_there_is_a_line_a_second_and_one_for_the_last_step(kept: Kept) -> None:
    for number in range(1, 36):
        kept.step(number / 10, number)
    assert kept.steps == [1, 11, 21, 31]
    kept.gone()
    assert kept.steps == [1, 11, 21, 31, 35]
    assert kept.lines[-1] == {
        "time": WALL.timestamp(),
        "phase": "only",
        "attempt": 1,
        "step": 35,
        "loss": 1 / 35,
    }


def test_a_step_that_comes_again_supersedes_it_and_all_after_it(kept: Kept) -> None:
    for number in range(1, 8):
        kept.step(float(number), number)
    kept.gone()
    kept.step(20.0, 6, attempt=2, first=5)
    assert [(line["attempt"], line["step"]) for line in kept.lines] == [
        *((1, number) for number in range(1, 5)),
        (2, 6),
    ]
    kept.step(21.0, 3, attempt=2)
    assert kept.steps == [1, 2, 3]


def test_of_several_ranks_the_lowest_is_kept(kept: Kept) -> None:
    kept.step(1.0, 5, rank=1)
    kept.step(2.0, 4, rank=0)
    kept.step(3.0, 9, rank=1)
    kept.step(4.0, 5, rank=0)
    kept.step(5.0, 99, attempt=0)
    assert kept.steps == [4, 5]


def test_an_evaluation_has_a_line_of_its_own(kept: Kept) -> None:
    kept.step(1.0, 4)
    kept.take(WorkerReported(1.0, 1, 0, EvaluatedMessage(4, {"accuracy": 0.5})))
    assert [line.get("evaluation_accuracy") for line in kept.lines] == [None, 0.5]


def test_steps_that_were_none_are_dropped(kept: Kept) -> None:
    kept.step(1.0, 1)
    kept.step(2.0, 7, attempt=2)
    kept.take(WorkerReported(3.0, 2, 0, StepsDroppedMessage()))
    assert kept.steps == [1]


def test_a_full_file_is_thinned_out_and_grows_half_as_fast(tmp_path: Path) -> None:
    kept = Kept(tmp_path, limit=2000)
    for number in range(1, 200):
        kept.step(float(number), number)
        assert kept.file.stat().st_size <= 2000
    steps = kept.steps
    assert steps == sorted(set(steps))
    assert steps[0] < 50
    assert steps[-1] > 150


def test_secrets_in_names_and_numbers_that_json_lacks_are_not_kept(kept: Kept) -> None:
    message = StepMessage(1, {"loss/hunter2": float("inf")})
    kept.take(WorkerReported(1.0, 1, 0, message))
    assert kept.lines[0]["loss/[redacted]"] is None
    assert b"hunter2" not in kept.file.read_bytes()


def test_nothing_is_kept_of_our_trainer_which_writes_its_own(tmp_path: Path) -> None:
    kept = Kept(tmp_path, plan=PLAN)
    kept.step(1.0, 1)
    assert not kept.file.exists()


def test_what_cannot_be_written_is_told_once(kept: Kept) -> None:
    kept.file.mkdir()
    kept.step(1.0, 1)
    kept.step(3.0, 2)
    assert len(kept.warned) == 1
