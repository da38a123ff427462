"""status.json: what is in it, how fresh it is, and what is left alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.stores.storage import LocalStorage
from supervisor.adapters.telling.status_file import StatusFile
from supervisor.core.events import (
    CheckpointCommitted,
    Event,
    PhaseBegun,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersStarted,
)
from supervisor.core.machine import step
from supervisor.core.state import JobState
from supervisor.files import live_status
from supervisor.files.live_status import STATUS
from supervisor.host.identity import Identity
from supervisor.ports import Transition
from supervisor.protocol.messages import StepMessage
from supervisor.protocol.reading import UnreadableError
from tests.core.history import policy
from tests.running import eventually

WALL = datetime(2026, 1, 1, tzinfo=UTC)
BEGINNING = (
    SupervisorStarted(0.0, "job", policy(), None),
    PhaseBegun(0.0, 0, "20260101_000000_restartable", None),
    WorkersStarted(0.0, 1, (7,)),
)


@dataclass
class _Clock:
    time: float = 0.0

    def now(self) -> float:
        return self.time

    def wall(self) -> datetime:
        return WALL + timedelta(seconds=self.time)


@dataclass
class Job:
    """A job whose transitions go to a status file."""

    folder: Path
    clock: _Clock = field(default_factory=_Clock)
    told: list[str] = field(default_factory=list)
    timers: list[Callable[[], None]] = field(default_factory=list)
    state: JobState = field(default_factory=JobState)

    def __post_init__(self) -> None:
        def call_later(delay: float, callback: Callable[[], None]) -> None:
            assert delay == 3.0
            self.timers.append(callback)

        storage = LocalStorage(self.folder)
        self.file = StatusFile(storage, policy(), self.clock, 3.0, self._tell, call_later)

    def _tell(self, notice: object) -> None:
        self.told.append(str(notice))

    def happens(self, *events: Event) -> None:
        for event in events:
            before, self.clock.time = self.state, event.at
            self.state, decisions = step(before, event, policy())
            now = Transition(event, before, self.state, decisions, self.clock.wall())
            self.file.observe(now)

    def tick(self) -> None:
        (timer,) = self.timers
        self.timers.clear()
        timer()

    def shows(self, **expected: Any) -> bool:
        """Whether the file has these values, in the end."""

        def is_there() -> bool:
            there = self.read()
            return all(there.get(key) == value for key, value in expected.items())

        return eventually(is_there)

    def read(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads((self.folder / STATUS).read_text())
        except FileNotFoundError:
            return {}
        return told


def reports(*steps: int, loss: float = 0.5) -> list[Event]:
    """A step after each second."""
    return [
        WorkerReported(1.0 + number, 1, 0, StepMessage(step, {"loss": loss}))
        for number, step in enumerate(steps)
    ]


def test_the_step_the_rate_and_the_eta_are_written_with_the_next_tick(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.happens(*BEGINNING, *reports(10, 12, 14, 16))
    job.tick()
    live = {
        "step": 16,
        "loss": 0.5,
        "loss_not_finite": False,
        "steps_per_second": 2.0,
        "eta_seconds": 42.0,
        "data_wait": None,
        "mfu": None,
        "step_at": "2026-01-01T00:00:04Z",
    }
    assert job.shows(live=live, status="RUNNING", attempt=1, max_steps=100, step=None)
    assert job.read()["supervisor"] == Identity.of_this_process().to_json()


def test_the_last_commit_is_written_with_its_time(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.happens(*BEGINNING, CheckpointCommitted(7.0, 0, 5))
    job.file.close()
    assert job.shows(step=5, committed_at="2026-01-01T00:00:07Z")
    again = Job(tmp_path)
    event = CheckpointCommitted(7.0, 0, 5)
    after, decisions = step(JobState(), event, policy())
    again.file.restore([Transition(event, JobState(), after, decisions, WALL)])
    again.happens(SupervisorStarted(9.0, "job", policy(), 5))
    assert again.shows(committed_at="2026-01-01T00:00:00Z")


def test_it_is_written_again_though_nothing_happens(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.happens(*BEGINNING)
    for seconds in (3.0, 6.0):
        job.clock.time = seconds
        job.tick()
        assert job.shows(time=f"2026-01-01T00:00:0{seconds:.0f}Z")


def test_a_loss_that_is_no_number_is_null(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.happens(*BEGINNING, *reports(1, 2, loss=math.nan))
    job.file.close()
    job.tick()
    assert live_status.parse((tmp_path / STATUS).read_bytes()).live.loss is None


def test_one_that_cannot_be_written_is_told_once_and_tried_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    (tmp_path / STATUS).mkdir()
    job.happens(*BEGINNING)
    assert eventually(lambda: job.told)
    job.tick()
    (tmp_path / STATUS).rmdir()
    job.tick()
    assert job.shows(job="job")
    (notice,) = job.told
    assert notice.startswith(f"{STATUS} cannot be written: is a directory")


def test_a_file_of_the_program_with_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / STATUS).write_text('{"epoch": 3, "status": "fine"}')
    job = Job(tmp_path)
    job.happens(*BEGINNING)
    job.tick()
    job.file.close()
    assert job.told == [f"{STATUS} cannot be written: it is there, and no supervisor wrote it"]
    assert job.read() == {"epoch": 3, "status": "fine"}


def test_one_of_an_earlier_version_is_replaced(tmp_path: Path) -> None:
    earlier = {"v": 1, "job": "job", "status": "RUNNING", "exit_code": None, "attempt": 1}
    (tmp_path / STATUS).write_text(json.dumps({**earlier, "time": "2025-01-01T00:00:00"}))
    with pytest.raises(UnreadableError, match="has no valid phase"):
        live_status.parse((tmp_path / STATUS).read_bytes())
    job = Job(tmp_path)
    job.happens(*BEGINNING)
    assert job.shows(phase="only")


def test_an_overdue_step_lowers_the_rate(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.happens(*BEGINNING, *reports(1, 2, 3))
    job.clock.time = 31.0
    job.tick()
    live = {
        "step": 3,
        "loss": 0.5,
        "loss_not_finite": False,
        "steps_per_second": 0.1,
        "eta_seconds": 970.0,
        "data_wait": None,
        "mfu": None,
        "step_at": "2026-01-01T00:00:03Z",
    }
    assert job.shows(live=live)


def test_after_a_long_silence_there_is_no_rate(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.happens(*BEGINNING, *reports(1, 2, 3))
    job.clock.time = 64.0
    job.tick()
    assert job.shows(time="2026-01-01T00:01:04Z")
    live = job.read()["live"]
    assert (live["steps_per_second"], live["eta_seconds"]) == (None, None)
    assert live["step_at"] == "2026-01-01T00:00:03Z"


def test_a_step_that_only_the_end_tells_has_no_time(tmp_path: Path) -> None:
    job = Job(tmp_path)
    end = WorkersGone(9.0, 1, None, resumed_from=None, step=7, committed=None)
    job.happens(*BEGINNING, *reports(1, 2, 3), end)
    job.tick()
    job.file.close()
    assert (job.read()["live"]["step"], job.read()["live"]["step_at"]) == (7, None)


def test_it_is_fresh_as_long_as_a_living_supervisor_may_not_have_written_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.happens(*BEGINNING)
    job.file.close()
    written = live_status.parse((tmp_path / STATUS).read_bytes())
    assert written.is_fresh(WALL + timedelta(seconds=10))
    assert not written.is_fresh(WALL + timedelta(seconds=20))
