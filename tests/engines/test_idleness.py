"""What an engine tells of workers that do nothing, on the machine of the simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from supervisor.core.events import Noticed, WorkerReported, WorkersIdle, WorkersObserved
from supervisor.diagnosis.success import Success
from supervisor.host.notice import Notice
from tests.engines.benches import OnTheSimulatedMachine


def started(folder: Path, success: Success) -> OnTheSimulatedMachine:
    bench = OnTheSimulatedMachine(folder)
    bench.launch = replace(bench.launch, success=success)
    bench.engine.start(bench.launch)
    bench.first(WorkerReported)
    return bench


def looks(bench: OnTheSimulatedMachine, number: int) -> None:
    """Let the engine look so often at its workers."""
    seen = len(bench.of(WorkersObserved))
    bench.until(lambda: len(bench.of(WorkersObserved)) >= seen + number)


def test_it_tells_for_how_long_they_have_done_nothing(tmp_path: Path) -> None:
    bench = started(tmp_path, Success(step=9))
    looks(bench, 3)
    assert bench.of(WorkersIdle) == [], "they train"
    bench.stop_training()
    looks(bench, 4)
    told = [event.seconds for event in bench.of(WorkersIdle)]
    assert told == sorted(told)
    assert told[-1] >= 5.0
    assert {event.attempt for event in bench.of(WorkersIdle)} == {bench.launch.attempt}


def test_it_does_not_where_no_step_completes_the_work(tmp_path: Path) -> None:
    bench = started(tmp_path, Success())
    bench.stop_training()
    looks(bench, 4)
    assert bench.of(WorkersIdle) == []


def test_people_hear_once_of_workers_that_do_nothing_for_minutes(tmp_path: Path) -> None:
    bench = started(tmp_path, Success())
    bench.stop_training()
    looks(bench, 58)
    assert notices(bench, "workers-idle") == [], "not yet five minutes"
    looks(bench, 70)
    (told,) = notices(bench, "workers-idle")
    assert told.keys["seconds"] == 300.0


def test_people_hear_once_of_a_program_that_has_failed_and_does_not_end(tmp_path: Path) -> None:
    bench = started(tmp_path, Success())
    looks(bench, 9)
    bench.leave_failure_record()
    looks(bench, 5)
    assert notices(bench, "rank-not-ended") == [], "it may save"
    looks(bench, 9)
    (told,) = notices(bench, "rank-not-ended")
    assert told.keys == {"rank": 0}
    assert bench.living() == 1


def notices(bench: OnTheSimulatedMachine, event: str) -> list[Notice]:
    """What people were told by this event."""
    return [told.text for told in bench.of(Noticed) if told.text.event == event]
