"""What an attempt commits below the newest step of its directory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from queue import Queue

import pytest

from supervisor.engines import checkpoint_source
from supervisor.engines.lower_steps import LowerSteps
from supervisor.protocol.committed import MARKER
from supervisor.protocol.epochs import SavedStep
from tests.running import PATIENCE


def mark(directory: Path, step: int | str, ago: float = 0.0) -> None:
    folder = directory / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    at = time.time() - ago
    for each in (folder / MARKER, folder):
        os.utime(each, (at, at))


def nothing(step: Path) -> bool:
    return False


def looked(lower: LowerSteps, newest: int) -> int | None:
    """Look once; returns the step that was told."""
    told: list[int] = []

    def take(step: SavedStep) -> bool:
        told.append(step.number)
        return True

    lower.look(SavedStep(newest), nothing, take)
    return told[0] if told else None


@pytest.fixture
def lower(tmp_path: Path) -> LowerSteps:
    """The steps of an attempt that begins now, in a directory with two old steps."""
    mark(tmp_path, 50, ago=90.0)
    mark(tmp_path, 50000, ago=100.0)
    return LowerSteps(tmp_path, None, time.time())


def test_a_new_step_is_told_once_after_the_newest_one(lower: LowerSteps, tmp_path: Path) -> None:
    mark(tmp_path, 100)
    assert looked(lower, 50000) is None, "that one is told first"
    assert looked(lower, 50000) == 100
    assert looked(lower, 50000) is None
    mark(tmp_path, 200)
    assert looked(lower, 50000) == 200


def test_what_was_there_before_is_not_told(lower: LowerSteps) -> None:
    assert [looked(lower, 50000) for _ in range(3)] == [None] * 3
    assert lower.last_look(SavedStep(50000), nothing) == ()


def test_what_was_committed_before_the_newest_one_is_not_told(
    lower: LowerSteps, tmp_path: Path
) -> None:
    """As of two saves between two looks."""
    mark(tmp_path, 60000, ago=0.5)
    mark(tmp_path, 70000)
    assert [looked(lower, 70000) for _ in range(3)] == [None] * 3


def test_what_nobody_has_committed_is_told_once_it_is(lower: LowerSteps, tmp_path: Path) -> None:
    (tmp_path / "100").mkdir()
    assert [looked(lower, 50000) for _ in range(2)] == [None] * 2
    mark(tmp_path, 100)
    assert looked(lower, 50000) == 100


def test_the_last_look_tells_the_newest_one_first(lower: LowerSteps, tmp_path: Path) -> None:
    mark(tmp_path, 100)
    assert lower.last_look(SavedStep(50000), nothing) == (SavedStep(50000), SavedStep(100))
    assert lower.last_look(None, nothing) == ()


def test_a_step_that_nobody_takes_any_more_is_left_to_the_last_look(
    lower: LowerSteps, tmp_path: Path
) -> None:
    """As of a look that is under way when the attempt ends."""
    assert looked(lower, 50000) is None
    mark(tmp_path, 100)
    lower.look(SavedStep(50000), nothing, lambda step: False)
    assert lower.last_look(SavedStep(50000), nothing) == (SavedStep(50000), SavedStep(100))


def test_the_watcher_tells_them(tmp_path: Path) -> None:
    commits, lower = Queue[SavedStep](), Queue[SavedStep]()
    mark(tmp_path, 50000, ago=100.0)
    watcher = checkpoint_source.watch(tmp_path, lambda: (), commits.put, lower.put, print)
    assert commits.get(timeout=PATIENCE) == SavedStep(50000)
    mark(tmp_path, 100)
    watcher.poll_now()
    assert lower.get(timeout=PATIENCE) == SavedStep(100)
    watcher.stop()
    mark(tmp_path, 200)
    assert watcher.last_lower(closed=False) == (SavedStep(50000), SavedStep(200))
    assert commits.empty()


def test_an_earlier_epoch_is_below_whatever_its_step(tmp_path: Path) -> None:
    mark(tmp_path, "epoch_3_step_5", ago=90.0)
    lower = LowerSteps(tmp_path, None, time.time())
    newest = SavedStep(5, (3,))
    assert lower.last_look(newest, nothing) == (newest,), "nothing else tells its epoch"
    mark(tmp_path, "epoch_0_step_80")
    assert lower.last_look(newest, nothing) == (newest, SavedStep(80, (0,)))
    mark(tmp_path, "epoch_4_step_1")
    assert lower.last_look(newest, nothing) == (newest,), "that one is above it"
