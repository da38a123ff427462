"""A damaged checkpoint that was moved aside is no newest one any more; what it counted stays."""

from __future__ import annotations

from supervisor.core.events import CheckpointSetAside
from supervisor.diagnosis.failure import WorkerExit
from tests.core.history import History, policy, started


def set_aside(history: History, newest: int | None, attempt: int = 2) -> None:
    place, wrong = "/run/damaged_checkpoints/20-1.damaged", "d/0 is missing"
    event = CheckpointSetAside(history.now, attempt, 20, newest, place, wrong, ("d/0",))
    assert history.happens(event) == ()


def launching_again() -> History:
    """Attempt 2 is about to start from step 20."""
    history = started(policy())
    history.runs()
    history.commits(10)
    history.commits(20)
    history.ends(WorkerExit(0, signal="SIGKILL"))
    history.gone(committed=20)
    assert history.state.newest == 20
    return history


def test_the_newest_step_falls_and_the_highest_stays() -> None:
    history = launching_again()
    set_aside(history, 10)
    assert (history.state.newest, history.state.budget.highest) == (10, 20)
    assert history.state.num_damaged == 1
    history.runs()
    restarts = history.state.budget.restarts
    history.commits(20)
    assert history.state.budget.restarts == restarts, "step 20 again is no progress"


def test_it_is_told_with_what_to_do() -> None:
    history = launching_again()
    set_aside(history, None)
    (line,) = history.told
    assert line.event == "checkpoint-damaged"
    assert line.keys["newest_committed_step"] is None
    assert "no checkpoint is left" in line.text
    assert line.text.endswith("move it back")


def test_of_another_attempt_it_changes_nothing() -> None:
    history = launching_again()
    set_aside(history, 10, attempt=1)
    assert history.state.newest == 20
    assert not history.told
