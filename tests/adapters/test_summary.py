"""What summary.json says, and that a supervisor that starts anew says it too."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from supervisor.adapters.journal import FileJournal
from supervisor.adapters.storage import LocalStorage
from supervisor.adapters.summary import Summary
from supervisor.core.events import (
    Event,
    PhaseBegun,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.failure import WorkerExit
from supervisor.core.machine import step
from supervisor.core.state import JobState
from supervisor.ports import Transition
from supervisor.protocol.messages import RestoredMessage, StepMessage
from tests.adapters.test_hostile_worker import PLAN, POLICY
from tests.core.history import RETRY

WALL = datetime(2026, 1, 1, tzinfo=UTC)

LIFE: tuple[Event, ...] = (
    SupervisorStarted(0.0, "job", POLICY, None),
    PhaseBegun(0.0, 0, "phase", None),
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
    storage.make_directory("phase")
    journal, summary = FileJournal(storage), Summary(storage, [PLAN], print)
    state = JobState()
    for event in LIFE:
        before = state
        state, decisions = step(before, event, POLICY)
        transition = Transition(event, before, state, decisions, WALL)
        if decisions or not isinstance(event, WorkerReported):
            journal.append(transition, durable=False)
        summary.observe(transition)
    seen = json.loads((tmp_path / "phase" / "summary.json").read_text())["attempts"]
    assert "recovery" not in seen[0]
    assert seen[1]["recovery"] == {
        "seconds": 2.0,
        "parts": {"detect": 0, "clean up": 0.25, "decide": 0.25, "start": 0.5, "program": 1.0},
        "lost_steps": 5,
        "first_completed_step": 16,
    }

    history = FileJournal(storage).read()
    again = Summary(storage, [PLAN], print)
    again.replay(history.transitions)
    event = SupervisorStarted(0.0, "job", POLICY, 15)
    after, decisions = step(history.state, event, POLICY)
    again.observe(Transition(event, history.state, after, decisions, WALL))
    gone = WorkersGone(1.0, 2, RETRY, 15, 16, 15)
    last, decisions = step(after, gone, POLICY)
    again.observe(Transition(gone, after, last, decisions, WALL))
    told = json.loads((tmp_path / "phase" / "summary.json").read_text())["attempts"]
    assert told[1]["recovery"] == seen[1]["recovery"]
