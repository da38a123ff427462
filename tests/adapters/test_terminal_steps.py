"""The panel of the live view shows a recognised step, and none once it was dropped.

It also shows the last step of an attempt that has ended."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from supervisor.adapters.telling.terminal import TerminalView
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
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import WorkerExit
from supervisor.narrative.rendered import with_lines
from supervisor.ports import Transition
from supervisor.protocol.messages import (
    Message,
    Stage,
    StageMessage,
    StepMessage,
    StepsDroppedMessage,
)
from tests.adapters.test_hostile_worker import PLAN, POLICY, Ticking

WALL = datetime(2026, 1, 1, tzinfo=UTC)


def panel(*messages: Message, end: WorkersGone | None = None) -> str:
    """What is left on the screen after these reports, and the end of the attempt."""
    read_end, write_end = os.pipe()
    view = TerminalView([PLAN], POLICY, Ticking(), pytest.fail, write_end)
    state = JobState()
    reports = (WorkerReported(1.0 + at, 1, 0, message) for at, message in enumerate(messages))
    events: list[Event] = [
        SupervisorStarted(0.0, "job", POLICY, None),
        PhaseBegun(0.0, 0, "phase", None),
        WorkersStarted(0.0, 1, (7,)),
        *reports,
    ]
    if end is not None:
        events += [WorkersObserved(end.at, 1, (7,), (WorkerExit(0, code=0),)), end]
    for event in events:
        before = state
        state, decisions = step(before, event, POLICY)
        view.observe(with_lines(Transition(event, before, state, decisions, WALL), POLICY))
    view.line("[main] anything")  # the panel is drawn with the next line
    view.close()
    os.close(write_end)
    with os.fdopen(read_end, "rb") as shown:
        return shown.read().decode()


def recognised(number: int) -> StepMessage:
    return StepMessage(number, {"loss": 0.625}, in_output=True, recognised=True)


def test_a_recognised_step_is_shown_with_loss_and_rate() -> None:
    shown = panel(recognised(4321), recognised(4325))
    assert "4325" in shown
    assert "0.6250" in shown
    assert "4.00" in shown


def test_a_step_that_was_dropped_is_not() -> None:
    shown = panel(recognised(4321), recognised(4325), StepsDroppedMessage())
    assert "4325" not in shown
    assert "0.6250" not in shown


def test_the_last_step_of_an_attempt_that_has_ended_is_shown() -> None:
    """Not each step has a report of its own: a stage or a save may name the last one."""
    end = WorkersGone(9.0, 1, None, resumed_from=None, step=4325, committed=None)
    shown = panel(StepMessage(4321, {}), StageMessage(Stage.FINISHING, 4325), end=end)
    assert "4325" in shown
    assert "4321" not in shown
