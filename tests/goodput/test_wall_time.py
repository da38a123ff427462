"""Where the wall time of a job went: each second in its place, and none twice."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

from supervisor.adapters.stores.journal import FileJournal
from supervisor.adapters.stores.storage import LocalStorage
from supervisor.core.decisions import TellStages
from supervisor.core.events import (
    DeadlineReached,
    StopSource,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
)
from supervisor.core.liveness import Silence
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.goodput.kept import view_of
from supervisor.goodput.wall_time import GOOGLE_NAMES, Goodput, Ledger, Part
from supervisor.history.encoding import decode
from supervisor.ports import Transition
from supervisor.protocol.messages import Message, RestoredMessage, Stage, StageMessage, StepMessage
from tests.core.history import RETRY, TWO, History, policy
from tests.core.test_capacity_check import EIGHT, HARDWARE, Devices
from tests.simulation.simulation import Simulation

ROOT = Path(__file__).resolve().parents[2]
NAMED = policy(PhasePolicy("only", 3, 2, Success(step=100), reports_stages=True))
KILLED = WorkerExit(0, signal="SIGKILL")


class Job(History):
    """A job that is told with the times of what happens."""

    def at(self, now: float) -> Job:
        """The next thing happens at this time."""
        self.now = now
        return self

    def says(self, *messages: Message) -> None:
        """The worker reports."""
        for each in messages:
            self.happens(WorkerReported(self.now, self.state.attempt, 0, each))

    def dies(self, step: int | None = None, committed: int | None = None) -> None:
        """The worker is killed, and seen to be gone."""
        self.ends(KILLED)
        gone = WorkersGone(self.now, self.state.attempt, RETRY, None, step, committed)
        self.happens(gone)
        if self.state.backoff is not None:
            self.waits()


def of(history: History, until: float | None = None) -> Goodput:
    """Where the time of this job went."""
    ledger = Ledger()
    for turn in history.turns:
        ledger = ledger.after(turn)
    return ledger.so_far(until)


def job(given: object = NAMED) -> Job:
    """A job whose first attempt runs, from the time 1.0 on."""
    told = Job(NAMED if given is NAMED else policy())
    told.starts()
    told.at(1.0).runs()
    return told


def trains(it: Job, since: float, first: int, restored: int | None = None) -> None:
    """The worker starts up in 2 s, restores in 1 s, compiles in 1 s, and completes a step."""
    it.at(since + 2).says(StageMessage(Stage.RESTORING))
    it.at(since + 3).says(StageMessage(Stage.COMPILING), RestoredMessage(restored))
    it.at(since + 4).says(StageMessage(Stage.TRAINING))
    it.at(since + 5).says(StepMessage(first))


def test_what_came_after_the_commit_is_lost() -> None:
    it = job()
    trains(it, 1.0, 1)  # trains since 5.0
    it.at(15.0).says(StepMessage(10), StageMessage(Stage.SAVING))
    it.at(16.0).commits(10)
    it.says(StageMessage(Stage.TRAINING))
    it.at(20.0).says(StepMessage(14))
    it.dies(step=14, committed=10)
    assert of(it).parts == {
        Part.PRODUCTIVE: 10.0,
        Part.LOST_STEPS: 4.0,
        Part.PROGRAM_STARTUP: 1.0 + 2.0 + 1.0,  # the first state is made, and none restored
        Part.COMPILE: 1.0,
        Part.SAVE: 1.0,
    }


def test_the_next_attempt_adds_to_what_is_kept() -> None:
    it = job()
    trains(it, 1.0, 1)
    it.at(15.0).says(StepMessage(10))
    it.commits(10)
    it.at(20.0).dies(step=15, committed=10)
    it.at(22.0).runs()
    trains(it, 22.0, 11, restored=10)  # trains since 26.0
    it.at(36.0).says(StepMessage(20))
    it.commits(20)
    told = of(it, until=40.0)
    assert told.parts[Part.PRODUCTIVE] == 10.0 + 14.0
    assert told.uncommitted == 4.0
    assert told.parts[Part.LOST_STEPS] == 5.0
    assert told.parts[Part.RESTART] == 2.0
    assert told.parts[Part.RESTORE] == 1.0
    assert told.wall == 40.0
    assert told.share == pytest.approx(24 / 40)


def test_an_attempt_that_finds_no_checkpoint_restores_nothing() -> None:
    """Also where an earlier one has trained, and has lost all of it."""
    it = job()
    trains(it, 1.0, 1)
    it.at(9.0).says(StepMessage(5))
    it.at(10.0).dies(step=5)
    it.at(11.0).runs()
    it.at(13.0).says(StageMessage(Stage.RESTORING))
    it.at(14.0).says(RestoredMessage(None))
    it.at(15.0).says(StageMessage(Stage.COMPILING))
    it.at(16.0).says(StageMessage(Stage.TRAINING), StepMessage(1))
    told = of(it, until=20.0).parts
    assert Part.RESTORE not in told
    assert told[Part.PROGRAM_STARTUP] == 4.0 + 4.0
    assert told[Part.COMPILE] == 1.0 + 1.0


def test_a_save_that_goes_on_beside_the_training_has_its_step_alone() -> None:
    """The commit of step 10 is seen when 15 steps are complete."""
    it = job()
    trains(it, 1.0, 1)
    it.at(15.0).says(StepMessage(10), StageMessage(Stage.SAVING), StageMessage(Stage.TRAINING))
    it.at(20.0).says(StepMessage(15))
    it.commits(10)
    it.at(25.0).dies(step=20, committed=10)
    told = of(it).parts
    assert (told[Part.PRODUCTIVE], told[Part.LOST_STEPS]) == (10.0, 10.0)


def test_a_snapshot_in_memory_keeps_what_no_checkpoint_has() -> None:
    it = job()
    trains(it, 1.0, 1)
    it.at(15.0).says(StepMessage(10))
    it.commits(10)
    it.at(25.0).dies(step=20, committed=10)
    it.at(26.0).runs()
    trains(it, 26.0, 19, restored=18)
    told = of(it, until=31.0).parts
    assert (told[Part.PRODUCTIVE], told[Part.LOST_STEPS]) == (18.0 + 1.0, 2.0)


def test_an_attempt_that_goes_further_back_loses_what_was_committed() -> None:
    it = job()
    trains(it, 1.0, 1)
    for step in (10, 20):
        it.at(5.0 + step).says(StepMessage(step))
        it.commits(step)
    it.at(26.0).dies(step=21, committed=20)
    it.at(27.0).runs()
    trains(it, 27.0, 11, restored=10)
    told = of(it, until=32.0).parts
    assert (told[Part.PRODUCTIVE], told[Part.LOST_STEPS]) == (10.0 + 1.0, 11.0)


def test_the_time_of_a_hang_until_it_is_noticed_is_detection() -> None:
    it = job()
    trains(it, 1.0, 1)
    it.at(15.0).says(StepMessage(10))
    it.commits(10)
    it.at(75.0).happens(DeadlineReached(75.0, Silence(1, Stage.TRAINING, 60.0)))
    it.at(78.0).ends(KILLED)
    it.at(79.0).gone(RETRY, committed=10)
    told = of(it).parts
    assert told[Part.DETECTION] == 60.0
    assert told[Part.RESTART] == 4.0
    assert told[Part.PRODUCTIVE] == 10.0
    assert Part.LOST_STEPS not in told


@pytest.mark.parametrize("time", [inf, nan, 1e308])
def test_times_that_no_stage_has_leave_the_sum_as_it_is(time: float) -> None:
    it = job()
    trains(it, 1.0, 1)
    it.at(20.0).dies()
    ledger = Ledger()
    for turn in it.turns:
        damaged = (
            replace(each, seconds=dict.fromkeys(Stage, time))
            if isinstance(each, TellStages)
            else each
            for each in turn.decisions
        )
        ledger = ledger.after(replace(turn, decisions=tuple(damaged)))
    assert ledger.so_far().wall == of(it).wall


def test_from_the_request_to_stop_on_it_drains_and_no_supervisor_runs_afterwards() -> None:
    it = job()
    trains(it, 1.0, 1)
    it.at(15.0).says(StepMessage(10))
    it.stops(StopSource.SIGTERM)
    it.at(17.0).commits(10)
    it.ends(WorkerExit(0, code=0))
    it.at(18.0).gone(RETRY, committed=10)
    told = of(it).parts
    assert (told[Part.DRAINED], told[Part.PRODUCTIVE]) == (3.0, 10.0)
    assert Part.LOST_STEPS not in told
    it.at(500.0).starts(10)
    assert of(it).parts[Part.NOT_RUNNING] == 482.0
    assert of(it).running == 18.0


def test_a_supervisor_with_another_clock_goes_on_with_the_same_ledger() -> None:
    """Its clock shows zero at another Unix time; workers of the old one were killed."""
    it = job()
    trains(it, 1.0, 1)
    it.at(15.0).says(StepMessage(10))
    it.commits(10)
    it.at(20.0).says(StageMessage(Stage.SAVING))
    it.happens(SupervisorStarted(5.0, "job", it.policy, 10, epoch=100.0))
    told = of(it).parts
    assert told[Part.NOT_RUNNING] == 105.0 - 20.0
    it.happens(SupervisorStarted(5.0, "job", it.policy, 10, epoch=50.0))
    assert of(it).wall == 105.0, "a clock that is set back takes nothing away"


def test_without_any_checkpoint_all_is_lost() -> None:
    it = job()
    trains(it, 1.0, 1)
    it.at(15.0).dies(step=10)
    it.at(15.0).runs()
    assert of(it).parts[Part.LOST_STEPS] == 10.0
    assert Part.PRODUCTIVE not in of(it).parts


def test_what_is_not_committed_when_the_job_succeeds_is_no_loss() -> None:
    it = job()
    trains(it, 1.0, 1)
    it.at(15.0).says(StepMessage(10))
    it.ends(WorkerExit(0, code=0))
    it.happens(WorkersGone(15.0, 1, None, None, 100, 100))
    assert of(it).parts[Part.PRODUCTIVE] == 10.0


def test_the_phases_before_the_present_one_stay_complete() -> None:
    it = Job(TWO)
    it.starts()
    it.at(2.0).runs()
    it.at(12.0).commits(10)
    it.ends(WorkerExit(0, code=0))
    it.gone(None, committed=10)
    it.begins()
    it.at(13.0).runs()
    it.at(15.0).dies(step=11)
    told = of(it).parts
    assert (told[Part.PRODUCTIVE], told[Part.LOST_STEPS]) == (10.0, 2.0)


def test_a_program_without_stages_starts_up_until_its_first_step() -> None:
    it = job("no stages")
    it.at(4.0).says(StepMessage(1))
    it.at(9.0).commits(6)
    told = of(it).parts
    assert (told[Part.PROGRAM_STARTUP], told[Part.PRODUCTIVE]) == (4.0, 5.0)


def test_of_a_program_that_saves_unseen_what_it_has_evidently_kept_is_not_lost() -> None:
    """It tells each tenth step, so it has restored one from 70 on."""
    it = job("no stages")
    it.at(2.0).says(StepMessage(10, every=10))
    it.at(8.0).says(StepMessage(70, every=10))
    it.at(8.0).dies(step=70)
    it.at(9.0).runs()
    it.at(10.0).says(StepMessage(80, every=10))
    told = of(it, until=13.0).parts
    assert Part.LOST_STEPS not in told
    assert told[Part.PRODUCTIVE] == 6.0 + 3.0


def test_where_a_program_goes_on_further_back_what_it_may_have_lost_is_lost() -> None:
    it = job("no stages")
    it.at(2.0).says(StepMessage(10, every=10))
    it.at(9.0).dies(step=70)
    it.at(9.0).runs()
    it.at(10.0).says(StepMessage(60, every=10))  # it has restored step 50 to 59
    told = of(it, until=13.0).parts
    assert told[Part.LOST_STEPS] == 2.0
    assert told[Part.PRODUCTIVE] == 5.0 + 3.0


def test_a_first_step_above_the_last_one_shows_that_nothing_seen_was_lost() -> None:
    """Also where nothing tells by how much the steps rise."""
    it = job("no stages")
    it.at(2.0).says(StepMessage(10))
    it.at(8.0).dies(step=70)
    it.at(9.0).runs()
    it.at(10.0).says(StepMessage(80))
    assert Part.LOST_STEPS not in of(it, until=11.0).parts


def test_a_program_that_tells_nothing_trains_all_the_time() -> None:
    it = job("no stages")
    it.at(9.0).commits(6)
    it.at(12.0).dies(committed=6)
    told = of(it).parts
    assert (told[Part.PRODUCTIVE], told[Part.LOST_STEPS]) == (8.0, 3.0)


def test_the_time_without_devices_is_told_apart() -> None:
    it = Devices(RestartPolicy(phases=(replace(EIGHT, rungs=(8,)),)))
    it.starts()
    it.now = 1.0
    it.lost = frozenset("3")
    it.fails(HARDWARE)
    it.looks()
    waiting_until = it.state.deadline
    assert waiting_until is not None
    it.waits()
    it.lost = frozenset()
    it.now += 2.0
    it.looks()
    assert of(it).parts == {
        Part.PROGRAM_STARTUP: 1.0,
        Part.WAIT_FOR_DEVICES: pytest.approx(waiting_until + 1.0),
    }


def of_a_simulated_job(seed: int, place: Path) -> list[Transition]:
    """All that the journal of a simulated job has."""
    simulation = Simulation(seed)
    simulation.run()
    of_the_journal = [each for each in simulation.disk.content if each.endswith(".jsonl")]
    for name in of_the_journal:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(simulation.disk.content[name])
    journal = FileJournal(LocalStorage(place))
    return list(journal.all_transitions(journal.peek()))


@pytest.mark.parametrize(
    "first", [0, 15] + [pytest.param(each, marks=pytest.mark.slow) for each in range(30, 300, 15)]
)
def test_the_parts_add_up_to_the_wall_time_to_the_nanosecond(first: int, tmp_path: Path) -> None:
    """Of jobs in which anything fails at any time. The ledger is kept as JSON now and then."""
    for seed in range(first, first + 15):
        ledger = Ledger()
        for number, each in enumerate(of_a_simulated_job(seed, tmp_path / str(seed))):
            ledger = ledger.after(each)
            parts = sum(ledger.parts.values()) + ledger.done + ledger.training.total + ledger.held
            assert parts == ledger.now - (ledger.begun or 0)
            if number % 7 == 0:
                kept: Ledger = decode(view_of(ledger)["ledger"], Ledger)
                assert replace(kept) == ledger
        assert all(seconds > 0 for seconds in ledger.so_far().parts.values())


def test_the_page_has_every_part_and_its_name() -> None:
    page = (ROOT / "docs" / "explanation" / "goodput.md").read_text()
    for part in Part:
        if part in GOOGLE_NAMES:
            assert re.search(rf"\| `{part}` \| .* \| `{GOOGLE_NAMES[part]}` \|", page), part
