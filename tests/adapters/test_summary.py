"""What summary.json says, and that a supervisor that starts anew says it too."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.adapters.telling.summary import Summary
from supervisor.core.events import (
    Event,
    PhaseBegun,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.machine import step
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import WorkerExit
from supervisor.narrative.rendered import RenderedTransition, render_history, with_lines
from supervisor.ports import Transition
from supervisor.protocol.messages import RestoredMessage, StepMessage
from tests.adapters.test_hostile_worker import PHASE, PLAN, POLICY
from tests.core.history import RETRY, History, policy

WALL = datetime(2026, 1, 1, tzinfo=UTC)

LIFE: tuple[Event, ...] = (
    SupervisorStarted(0.0, "job", POLICY, None),
    PhaseBegun(0.0, 0, PHASE, None),
    WorkersStarted(0.0, 1, (7,)),
    WorkersObserved(8.0, 1, (7,), (WorkerExit(0, signal="SIGKILL"),)),
    WorkersGone(8.25, 1, RETRY, None, 20, 15),
    WorkersStarted(9.0, 2, (8,), began=8.5),
    WorkerReported(9.5, 2, 0, RestoredMessage(15)),
    WorkerReported(10.0, 2, 0, StepMessage(16)),
)


def test_a_recovery_outlives_the_supervisor_that_saw_it(tmp_path: Path) -> None:
    """It is in the journal, although steps are not."""
    storage = LocalStorage(tmp_path)
    storage.make_directory(PHASE)
    journal, summary = FileJournal(storage), Summary(storage, [PLAN], POLICY, print)
    state = JobState()
    for event in LIFE:
        before = state
        state, decisions = step(before, event, POLICY)
        transition = Transition(event, before, state, decisions, WALL)
        if decisions or not isinstance(event, WorkerReported):
            journal.append(transition, durable=False)
        summary.observe(with_lines(transition, POLICY))
    seen = json.loads((tmp_path / PHASE / "summary.json").read_text())["attempts"]
    assert "recovery" not in seen[0]
    assert seen[1]["recovery"] == {
        "seconds": 2.0,
        "parts": {"detect": 0, "clean up": 0.25, "decide": 0.25, "start": 0.5, "program": 1.0},
        "lost_steps": 5,
        "first_completed_step": 16,
    }

    history = FileJournal(storage).read()
    again = Summary(storage, [PLAN], POLICY, print)
    again.replay(render_history(history.transitions, POLICY))
    event = SupervisorStarted(0.0, "job", POLICY, 15)
    after, decisions = step(history.state, event, POLICY)
    again.observe(with_lines(Transition(event, history.state, after, decisions, WALL), POLICY))
    gone = WorkersGone(1.0, 2, RETRY, 15, 16, 15)
    last, decisions = step(after, gone, POLICY)
    again.observe(with_lines(Transition(gone, after, last, decisions, WALL), POLICY))
    shown = json.loads((tmp_path / PHASE / "summary.json").read_text())["attempts"]
    assert shown[1]["recovery"] == seen[1]["recovery"]


def life(last: int) -> list[RenderedTransition]:
    """All of the attempts up to the number `last` have failed."""
    history = History(policy(PhasePolicy("one", last + 1, repeated_failure_limit=0)))
    history.happens(SupervisorStarted(0.0, "job", history.policy, None))
    history.happens(PhaseBegun(0.0, 0, PHASE, None))
    for _ in range(last):
        history.fails()
    return history.turns


def written(folder: Path) -> tuple[list[int], list[int]]:
    """The attempts in attempts.jsonl and in summary.json."""
    lines = (folder / PHASE / "attempts.jsonl").read_bytes().splitlines()
    body = json.loads((folder / PHASE / "summary.json").read_text())
    return [json.loads(line)["attempt"] for line in lines], [
        record["attempt"] for record in body["attempts"]
    ]


LAST = 5
TORN = b'{"attempt":1,"sta'


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    storage = LocalStorage(tmp_path)
    storage.make_directory(PHASE)
    return storage


def observed(storage: LocalStorage, since: int, last: int) -> None:
    """A supervisor that starts after the attempt `since` lives until the attempt `last` is over."""
    summary = Summary(storage, [PLAN], POLICY, pytest.fail, last=LAST)
    earlier = life(since)
    summary.replay(earlier)
    for transition in life(last)[len(earlier) :]:
        summary.observe(transition)


def test_the_records_of_older_attempts_are_appended_elsewhere(
    tmp_path: Path, storage: LocalStorage
) -> None:
    observed(storage, 0, 12)
    assert written(tmp_path) == (list(range(1, 8)), list(range(8, 13)))
    body = json.loads((tmp_path / PHASE / "summary.json").read_text())
    assert body["num_attempts"] == 12
    assert body["num_by_status"] == {"FAILED": 12}
    (first, *_) = (tmp_path / PHASE / "attempts.jsonl").read_text().splitlines()
    assert json.loads(first) == {**body["attempts"][0], "attempt": 1}


@pytest.mark.parametrize("at", [1, 4, 5, 6, 8])
def test_the_next_supervisor_writes_no_record_twice_and_leaves_none_out(
    tmp_path: Path, storage: LocalStorage, at: int
) -> None:
    observed(storage, 0, at)
    observed(storage, at, 9)
    assert written(tmp_path) == (list(range(1, 5)), list(range(5, 10)))


@pytest.mark.parametrize(
    ("harm", "there"),
    [
        (lambda path: path.write_bytes(path.read_bytes() + TORN), list(range(1, 6))),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), None),
        (lambda path: path.write_bytes(b"\0" * 100), None),
        (lambda path: path.unlink(), list(range(1, 6))),
    ],
)
def test_what_a_crash_or_a_person_did_to_the_file_is_mended(
    tmp_path: Path,
    storage: LocalStorage,
    harm: Callable[[Path], object],
    there: list[int] | None,
) -> None:
    path = tmp_path / PHASE / "attempts.jsonl"
    observed(storage, 0, 8)
    harm(path)
    observed(storage, 8, 10)
    found = []
    for line in path.read_bytes().splitlines():
        with suppress(ValueError):
            found.append(json.loads(line)["attempt"])
    assert sorted(found) == list(range(1, 6))
    assert there is None or found == there


def test_a_disk_that_is_full_for_a_while_loses_no_record(
    tmp_path: Path, storage: LocalStorage
) -> None:
    said: list[str] = []
    summary = Summary(storage, [PLAN], POLICY, said.append, last=LAST)
    (tmp_path / PHASE / "attempts.jsonl").mkdir()
    for transition in life(8):
        summary.observe(transition)
    assert said == [
        "attempts.jsonl cannot be written: is a directory, not a regular file: move it away"
    ]
    (tmp_path / PHASE / "attempts.jsonl").rmdir()
    for transition in life(9)[len(life(8)) :]:
        summary.observe(transition)
    assert written(tmp_path)[0] == list(range(1, 5))


def test_nothing_is_written_where_no_phase_has_begun(tmp_path: Path, storage: LocalStorage) -> None:
    """A journal that somebody has edited may have attempts without one."""
    summary = Summary(storage, [PLAN], POLICY, pytest.fail, last=LAST)
    for transition in life(8):
        if not isinstance(transition.event, PhaseBegun):
            summary.observe(transition)
    assert [path.name for path in (tmp_path / PHASE).iterdir()] == ["summary.json"]
