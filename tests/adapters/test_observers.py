"""An observer harms neither the job nor another observer."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from supervisor.adapters.status_file import STATUS, StatusFile
from supervisor.adapters.storage import LocalStorage
from supervisor.core.events import SupervisorStarted
from supervisor.core.machine import step
from supervisor.core.state import JobState
from supervisor.observers import Observers
from supervisor.ports import Transition
from tests.core.history import policy

EVENT = SupervisorStarted(0.0, "job", policy(), None)
AFTER, DECISIONS = step(JobState(), EVENT, policy())
STARTED = Transition(EVENT, JobState(), AFTER, DECISIONS, datetime(2030, 1, 1, tzinfo=UTC))


class Counting:
    """An observer that fails, or not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.seen = 0
        self._error = error

    def observe(self, transition: Transition) -> None:
        self.seen += 1
        if self._error is not None:
            raise self._error


def test_one_that_fails_is_told_of_once_and_off(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    broken, sound = Counting(RuntimeError("no picture")), Counting()
    observers = Observers([broken, sound], told.append)
    for _ in range(3):
        observers.observe(STARTED)
    assert (broken.seen, sound.seen) == (1, 3)
    assert told == ["Counting failed (RuntimeError('no picture')): it is off, and the job goes on"]
    assert "RuntimeError: no picture" in capfd.readouterr().err, "with its traceback: it is a bug"


def test_a_status_file_that_cannot_be_written_is_told_once_and_tried_again(tmp_path: Path) -> None:
    told: list[str] = []
    status = StatusFile(LocalStorage(tmp_path), policy(), told.append)
    (tmp_path / STATUS).mkdir()
    for _ in range(3):
        status.observe(STARTED)
    assert told == [f"{STATUS} cannot be written: Is a directory"]
    (tmp_path / STATUS).rmdir()
    status.observe(STARTED)
    assert (tmp_path / STATUS).is_file()
