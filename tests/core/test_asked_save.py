"""A person wants a checkpoint now: a running attempt is asked for it, and nothing else changes."""

from __future__ import annotations

from supervisor.core.decisions import AskToSave
from supervisor.core.events import SaveRequested
from supervisor.core.state import Status
from supervisor.diagnosis.failure import WorkerExit
from tests.core.history import History, started

WHO = "ann on h1"


def asks(history: History) -> tuple[object, ...]:
    return history.happens(SaveRequested(history.now, WHO))


def test_a_running_attempt_is_asked_and_trains_on() -> None:
    history = started()
    history.runs()
    before = history.state
    (asked,) = asks(history)
    assert asked == AskToSave(1, before.directory or "", WHO)
    assert history.state == before
    told = f"asked for a checkpoint by {WHO}: it is asked to save and trains on"
    assert [line.text for line in history.told] == [told]


def test_where_nothing_trains_nobody_is_asked() -> None:
    starting, waiting, stopping = started(), started(), started()
    for _ in range(2):
        waiting.runs()
        waiting.ends(WorkerExit(0, signal="SIGKILL"))
        waiting.gone()
    assert waiting.state.status is Status.BACKOFF
    stopping.runs()
    stopping.stops()
    for history in (starting, waiting, stopping):
        assert asks(history) == ()
        assert history.told[0].text.endswith("nothing trains now, so nothing is saved")
