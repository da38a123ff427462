"""What every engine must do, and must never do: the docstrings of `engines.engine`, tried.

Each case runs on real processes, on the simulated machine, and on the agents of many hosts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core.events import (
    CheckpointCommitted,
    DevicesProbed,
    LaunchFailed,
    Noticed,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.outcome import Verdict
from supervisor.protocol.messages import StageMessage, StepMessage
from tests.engines.benches import ENGINES, Bench
from tests.fleet.many_hosts import OnManyHosts

Make = Callable[..., Bench]


ALL = {**ENGINES, "many hosts": OnManyHosts}


@pytest.fixture(params=ALL)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes a bench; see `OnThisHost` for what it takes."""

    def made(*args: int, **options: bool) -> Bench:
        bench: Bench = ALL[request.param](tmp_path, *args, **options)
        request.addfinalizer(bench.close)
        return bench

    return made


def started(bench: Bench) -> Bench:
    """The bench, with an attempt that runs and has told its first step."""
    bench.engine.start(bench.launch)
    bench.first(WorkersStarted)
    bench.first(WorkerReported, is_of_a_step)
    return bench


def is_of_a_step(event: WorkerReported) -> bool:
    return isinstance(event.message, StepMessage | StageMessage) and event.message.step is not None


def has_ended(number: int) -> Callable[[WorkersObserved], bool]:
    return lambda event: len(event.exits) == number


def gone(bench: Bench) -> WorkersGone:
    """The end of the attempt, which is killed."""
    exits = bench.of(WorkersObserved)[-1].exits if bench.of(WorkersObserved) else ()
    bench.engine.kill(bench.launch, exits)
    return bench.first(WorkersGone)


def test_a_start_is_answered_once_and_names_a_process_for_each_rank(make: Make) -> None:
    bench = make(2)
    assert bench.engine.directory is None
    bench = started(bench)
    (answer,) = bench.of(WorkersStarted)
    assert (answer.attempt, len(answer.pids)) == (3, 2)
    assert bench.engine.directory == bench.launch.directory
    assert bench.living() == 2
    gone(bench)


def test_gone_is_told_only_when_nothing_lives(make: Make) -> None:
    bench = started(make(2))
    bench.engine.kill(bench.launch, ())
    answer = bench.first(WorkersGone)
    assert (bench.living(), bench.engine.directory) == (0, None)
    assert (answer.attempt, answer.step) == (3, bench.step)
    assert answer.failure is not None
    bench.turn(0.3)
    assert bench.of(WorkersGone) == [answer]


def test_who_asks_again_is_answered_again(make: Make) -> None:
    """The core does when it hears nothing for a while: the answer may have been lost."""
    bench = started(make())
    first = gone(bench)
    bench.engine.kill(bench.launch, (WorkerExit(0, signal="SIGKILL"),))
    bench.until(lambda: len(bench.of(WorkersGone)) == 2)
    again = bench.of(WorkersGone)[-1]
    assert first.failure is not None
    assert again.failure is not None
    assert (again.attempt, again.failure.verdict) == (3, first.failure.verdict)


def test_each_look_tells_all_ends_so_far_in_their_order(make: Make) -> None:
    bench = started(make(2))
    for number, rank in enumerate((1, 0), 1):
        bench.strike(rank)
        bench.first(WorkersObserved, has_ended(number))
    last: tuple[WorkerExit, ...] = ()
    for look in bench.of(WorkersObserved):
        assert look.exits[: len(last)] == last
        last = look.exits
    assert [(end.rank, end.signal) for end in last] == [(1, "SIGKILL"), (0, "SIGKILL")]
    failure = gone(bench).failure
    assert failure is not None
    assert (failure.rank, failure.root_cause) == (1, "killed by SIGKILL")


def test_what_a_worker_said_is_told_before_its_end_and_success_is_no_failure(make: Make) -> None:
    bench = make(ends=True)
    bench.engine.start(bench.launch)
    ended = bench.first(WorkersObserved, has_ended(1))
    told = bench.told.index(ended)
    assert all(bench.told.index(said) < told for said in bench.of(WorkerReported))
    assert any(map(is_of_a_step, bench.of(WorkerReported)))
    assert ended.exits[0].clean
    assert bench.of(WorkersGone) == [], "nobody asked for its end to be judged"
    end = gone(bench)
    assert (end.failure, end.step) == (None, bench.step)


def test_a_start_that_fails_leaves_nothing_behind(make: Make) -> None:
    bench = make(starts=False)
    bench.engine.start(bench.launch)
    answer = bench.first(LaunchFailed)
    assert (answer.attempt, bench.of(WorkersStarted)) == (3, [])
    assert (bench.living(), bench.engine.directory) == (0, None)


def test_an_attempt_of_an_earlier_supervisor_is_judged_by_what_is_known(make: Make) -> None:
    bench = make()
    bench.launch.directory.mkdir(exist_ok=True)
    bench.engine.kill(bench.launch, (WorkerExit(0, code=3),))
    answer = bench.first(WorkersGone)
    assert answer.attempt == 3
    assert answer.failure is not None
    assert (answer.failure.verdict, answer.failure.exit) == (Verdict.RESTART, "exit code 3")


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_workers_that_are_asked_to_end_do_so_by_themselves(make: Make, in_a_thread: bool) -> None:
    """Nothing kills them but `kill`: how long they may take is for the core to say."""
    bench = started(make())
    if in_a_thread:
        thread = threading.Thread(target=bench.engine.pass_on_sigterm)
        thread.start()
        thread.join()
    else:
        bench.engine.terminate(bench.launch.attempt)
    bench.first(WorkersObserved, has_ended(1))
    assert bench.of(WorkersGone) == []
    gone(bench)


def test_what_is_meant_for_another_attempt_does_nothing(make: Make) -> None:
    bench = started(make())
    for attempt in (2, 4):
        bench.engine.terminate(attempt)
        bench.engine.dump_stacks(attempt)
    bench.turn(0.3)
    assert bench.living() == 1
    assert "stacks-dumped" not in {told.text.event for told in bench.of(Noticed)}
    gone(bench)


def test_to_dump_stacks_ends_nobody(make: Make) -> None:
    """Also where the program does not handle the signal."""
    bench = started(make())
    bench.engine.dump_stacks(bench.launch.attempt)
    bench.first(Noticed)
    bench.turn(0.3)
    assert bench.living() == 1
    gone(bench)


def test_workers_that_cannot_be_placed_are_a_launch_failure(make: Make) -> None:
    """Nothing shows how one process has three chips of a TPU host: an error of ours, or of the
    ladder."""
    bench = make()
    plan = replace(bench.launch.plan, platform="tpu", num_devices=8, units=tuple("01234567"))
    launch = replace(bench.launch, plan=plan, num_devices=3, units=("0", "1", "2"))
    bench.engine.start(launch)
    answer = bench.first(LaunchFailed)
    assert (answer.attempt, answer.failure.rule) == (3, "launch")
    assert "3 of 3 chips" in answer.failure.root_cause
    assert (bench.living(), bench.engine.directory) == (0, None)
    assert bench.of(WorkersStarted) == []


def test_a_commit_is_told_and_the_newest_is_looked_for_when_all_is_over(make: Make) -> None:
    bench = started(make())
    bench.commit(7)
    told = bench.first(CheckpointCommitted)
    assert (told.phase, told.step) == (0, 7)
    bench.commit(9)
    assert gone(bench).committed == 9


def test_a_look_at_the_devices_is_answered_once_with_its_number(make: Make) -> None:
    bench = make()
    bench.engine.probe(bench.launch.plan, 5, None)
    assert bench.first(DevicesProbed).number == 5
    bench.turn(0.2)
    assert len(bench.of(DevicesProbed)) == 1


def test_who_is_in_the_way_is_told_and_decides_nothing(make: Make) -> None:
    bench = make()
    bench.engine.name_holders()
    bench.turn(0.1)
    assert all(isinstance(event, Noticed) for event in bench.told)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "this host" else name
             for name in ENGINES]
)  # fmt: skip
def test_it_looks_again_without_a_cause(name: str, tmp_path: Path) -> None:
    """What the core did not hear, it hears later."""
    bench = started(ENGINES[name](tmp_path))
    bench.until(lambda: len(bench.of(WorkersObserved)) > 1)
    assert {look.exits for look in bench.of(WorkersObserved)} == {()}
    gone(bench)
