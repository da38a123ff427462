"""The directory that was found is kept through restarts, and given to everybody who looks there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.budget import Budget, is_of_a_later_epoch
from supervisor.core.decisions import BeginPhase, Decision, KillWorkers, StartWorkers
from supervisor.core.events import (
    CheckpointCommitted,
    CheckpointsFound,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.narrative.event_line import Line
from supervisor.protocol.messages import StepMessage
from tests.core.history import FATAL, RETRY, History, policy, started

FINDS = policy(PhasePolicy("only", 2, 2, Success(step=100), finds_checkpoints=True))
UNPROVEN = policy(PhasePolicy("only", 2, 2, Success(), finds_checkpoints=True))
ACTOR = "/out/checkpoints/actor"


def finds(
    history: History, directory: str = ACTOR, phase: int = 0, *, resumed: bool = False
) -> tuple[Decision, ...]:
    found = CheckpointsFound(history.now, phase, directory, is_resumed=resumed)
    return history.happens(found)


def reports(history: History, step: int) -> None:
    history.happens(WorkerReported(history.now, history.state.attempt, 0, StepMessage(step)))


def job(given: RestartPolicy = FINDS) -> History:
    history = started(given)
    history.runs()
    return history


def test_the_last_scan_and_the_next_attempt_look_where_it_was_found() -> None:
    history = job()
    assert finds(history) == ()
    (kill,) = history.ends(WorkerExit(0, signal="SIGKILL"))
    (start,) = history.gone(committed=5)
    assert isinstance(kill, KillWorkers)
    assert isinstance(start, StartWorkers)
    assert kill.checkpoints == start.checkpoints == ACTOR


def test_it_is_told_once() -> None:
    history = job()
    finds(history)
    (line,) = history.told
    assert line.event == "checkpoints-found"
    assert line.keys == {"attempt": 1, "place": ACTOR, "forgiven": 0}
    finds(history)
    assert not history.told


def begins_again(history: History) -> Line:
    """An attempt commits step 5 and is killed, and the next one begins at step 1: what is told."""
    history.commits(5)
    reports(history, 7)
    history.ends(WorkerExit(0, signal="SIGKILL"))
    gone = WorkersGone(history.now, 1, RETRY, resumed_from=None, step=7, committed=5)
    history.happens(gone)
    history.runs()
    reports(history, 1)
    (line,) = (each for each in history.told if each.event == "not-resumed")
    return line


@pytest.mark.parametrize("is_found", [True, False])
def test_who_goes_on_below_the_newest_step_may_restore_from_another_directory(
    *, is_found: bool
) -> None:
    history = job()
    if is_found:
        finds(history)
    line = begins_again(history)
    advice = (
        f"restores from another folder than {ACTOR}, where step 5 was found, name that one: "
        "--set trainer.init.checkpoint.directory=FOLDER"
    )
    assert (advice in line.text) is is_found


def test_nobody_is_told_to_name_the_folder_of_one_start() -> None:
    """The next start has another one, so what is saved there would not be seen."""
    folder = "/data/runs/2026-11-29_01-05-05/ckpt"
    history = job()
    finds(history, folder)
    (line,) = history.told
    assert "checkpoint.directory" not in line.text
    line = begins_again(history)
    assert f"found in {folder}: if the program makes a new folder at each start" in line.text
    assert "give it a fixed folder (an argument of its own)" in line.text
    assert "checkpoint.directory" not in line.text


def test_another_directory_lowers_no_highest_step() -> None:
    history = job()
    finds(history)
    history.commits(50)
    finds(history, "/out/version_1/checkpoints")
    history.commits(7)
    assert history.state.checkpoints == "/out/version_1/checkpoints"
    assert history.state.budget.highest == 50


def test_without_a_need_to_find_it_nothing_changes() -> None:
    history = job(policy())
    finds(history)
    assert history.state.checkpoints is None
    other = job()
    finds(other, phase=1)
    assert other.state.checkpoints is None


def test_the_next_supervisor_knows_it_until_the_config_names_one() -> None:
    history = job()
    finds(history)
    history.starts(5)
    assert history.state.checkpoints == ACTOR
    named = replace(FINDS.phases[0], finds_checkpoints=False)
    history.policy = policy(named)
    history.happens(SupervisorStarted(history.now, "job", history.policy, 5))
    assert history.state.checkpoints is None


def test_a_job_that_failed_for_good_begins_again_where_its_checkpoints_are() -> None:
    history = job()
    finds(history)
    history.ends(WorkerExit(0, code=1))
    history.gone(replace(FATAL, certain=True))
    started_again = SupervisorStarted(history.now, "job", FINDS, 5)
    (begin,) = history.happens(started_again)
    assert isinstance(begin, BeginPhase)
    assert begin.checkpoints == ACTOR


def test_the_next_phase_has_a_directory_of_its_own() -> None:
    phase = PhasePolicy("one", 1, 1, Success(), finds_checkpoints=True)
    history = job(policy(phase, replace(phase, name="two")))
    finds(history)
    history.ends(WorkerExit(0, code=0))
    history.gone(None)
    assert history.state.phase == 1
    assert history.state.checkpoints is None


def begun_anew(given: RestartPolicy = UNPROVEN) -> History:
    """A job that has succeeded by its exit code alone, with step 50 in ACTOR, and is run again."""
    history = job(given)
    finds(history)
    history.commits(50)
    history.ends(WorkerExit(0, code=0))
    history.gone(None, committed=50)
    history.happens(SupervisorStarted(history.now, "job", given, 50, once=False))
    return history


def test_a_job_that_begins_anew_knows_where_its_checkpoints_are() -> None:
    history = begun_anew()
    begin = history.decided[-1]
    assert isinstance(begin, BeginPhase)
    assert begin.checkpoints == ACTOR
    assert history.state.budget == Budget(), "the counts begin anew"
    (start,) = history.begins(committed=50)
    assert isinstance(start, StartWorkers)
    assert start.checkpoints == ACTOR
    assert history.state.newest == 50
    history.fails()
    history.commits(50)
    assert history.state.budget.restarts == 1, "what was there before is no progress"
    history.commits(51)
    assert history.state.budget == Budget(highest=51, total=1, first=50)


def test_a_directory_of_a_later_phase_is_not_that_of_the_first() -> None:
    phase = UNPROVEN.phases[0]
    given = policy(phase, replace(phase, name="two"))
    history = job(given)
    history.ends(WorkerExit(0, code=0))
    history.gone(None)
    history.begins()
    history.runs()
    finds(history, phase=1)
    history.ends(WorkerExit(0, code=0))
    history.gone(None, committed=5)
    (begin,) = history.happens(SupervisorStarted(history.now, "job", given, 5, once=False))
    assert isinstance(begin, BeginPhase)
    assert (begin.phase, begin.checkpoints) == (0, None)


def test_a_later_run_knows_the_directories_of_all_phases() -> None:
    phase = UNPROVEN.phases[0]
    history = job(policy(phase, replace(phase, name="two")))
    finds(history)
    history.ends(WorkerExit(0, code=0))
    history.gone(None, committed=5)
    assert history.state.checkpoints is None
    history.begins()
    history.runs()
    finds(history, "/out/two", phase=1)
    history.ends(WorkerExit(0, code=0))
    history.gone(None, committed=5)
    (begin,) = history.happens(SupervisorStarted(history.now, "job", history.policy, 5, once=False))
    assert isinstance(begin, BeginPhase)
    assert (begin.phase, begin.checkpoints) == (0, ACTOR)
    history.begins(committed=5)
    assert history.state.checkpoints_of(1) == "/out/two"
    history.succeeds()
    begin = history.decided[-1]
    assert isinstance(begin, BeginPhase)
    assert (begin.phase, begin.checkpoints) == (1, "/out/two")


def test_a_rerun_that_begins_again_in_another_folder_makes_progress() -> None:
    history = begun_anew()
    history.begins(committed=50)
    for step in (10, 20, 30):
        history.runs()
        finds(history, "/out/version_1")
        commits_new(history, step)
        history.ends(WorkerExit(0, signal="SIGKILL"))
        history.gone(committed=step)
        assert history.state.budget.restarts == 1
        if history.state.backoff is not None:
            history.waits()
    assert history.state.newest == 30


def attempts_until_the_end(history: History, *folders: str) -> int:
    """How many attempts a job makes, each of which commits the same steps in the `folders`; {} is
    the number of the attempt."""
    for number in range(1, 20):
        for folder in folders:
            finds(history, folder.format(number))
            commits_new(history, 5)
            commits_new(history, 10)
        history.ends(WorkerExit(0, signal="SIGKILL"))
        history.gone(committed=10)
        if history.finish is not None:
            assert history.finish.exit_code is ExitCode.BUDGET_SPENT
            return number
        if history.state.backoff is not None:
            history.waits()
        history.runs()
    raise AssertionError("it never ends")


@pytest.mark.parametrize(
    "folders",
    [
        ("/out/version_{}",),
        ("/out/epoch_{}",),
        ("/out/round_{}/ckpt",),
        ("/out/epoch_1", "/out/epoch_2"),
    ],
)
def test_a_program_that_begins_again_each_time_makes_no_progress(folders: tuple[str, ...]) -> None:
    """In a new folder, or in those of the first epochs again."""
    assert attempts_until_the_end(job(), *folders) == 3


def test_an_attempt_that_goes_on_in_the_folder_of_a_later_epoch_makes_progress() -> None:
    history = job()
    for number in range(1, 6):
        finds(history, f"/out/epoch_{number}", resumed=number > 1)
        commits_new(history, 10)
        assert history.state.budget.restarts == 0
        history.ends(WorkerExit(0, signal="SIGKILL"))
        history.gone(committed=10)
        if history.state.backoff is not None:
            history.waits()
        history.runs()
    finds(history, "/out/epoch_6", resumed=True)
    (line,) = history.told
    assert line.text.endswith("it is of a later epoch: progress, 1 charged failure forgiven")
    assert line.keys["forgiven"] == 1


def test_the_next_attempt_makes_progress_in_an_epoch_that_one_has_begun() -> None:
    history = job()
    finds(history, "/out/epoch_1")
    commits_new(history, 100)
    history.ends(WorkerExit(0, signal="SIGKILL"))
    history.gone(committed=100)
    history.runs()
    finds(history, "/out/epoch_2")
    (line,) = history.told
    assert line.text.endswith("it is of a later epoch, and progress once an attempt goes on there")
    commits_new(history, 5)
    assert (history.state.newest, history.state.budget.restarts) == (5, 1)
    history.ends(WorkerExit(0, signal="SIGKILL"))
    history.gone(committed=5)
    history.waits()
    history.runs()
    assert history.state.budget.restarts == 2
    commits_new(history, 10)
    assert (history.state.newest, history.state.budget.restarts) == (10, 0)


def test_who_has_gone_from_one_epoch_to_the_next_makes_progress_with_each_later_one() -> None:
    """Also if each attempt goes on at the end of an epoch, so that it begins another folder."""
    history = job()
    for number in (1, 2, 3):
        finds(history, f"/out/epoch_{number}")
        commits_new(history, 10)
    for number in range(4, 12):
        history.ends(WorkerExit(0, signal="SIGKILL"))
        history.gone(committed=10)
        if history.state.backoff is not None:
            history.waits()
        history.runs()
        assert history.state.budget.restarts == 1
        finds(history, f"/out/epoch_{number}")
        assert history.state.budget.restarts == 0
        commits_new(history, 5)
        assert history.state.newest == 5
        commits_new(history, 10)


def test_a_later_epoch_refills_all_but_the_total() -> None:
    spent = Budget(restarts=2, preemptions=1, highest=90, total=3)
    budget = spent.saving_in("/epoch_2", "/epoch_1", 3, is_resumed=True)
    assert (budget.failures, budget.highest, budget.total) == (0, 0, 3)
    budget = budget.committed(5, attempt=3)
    behind = budget.saving_in("/epoch_1", "/epoch_2", 3, is_resumed=True)
    assert behind.committed(80, attempt=3) == behind
    again = behind.saving_in("/epoch_2", "/epoch_1", 3, is_resumed=True)
    assert again.committed(5, attempt=3) == again
    assert again.committed(6, attempt=3).highest == 6


@pytest.mark.parametrize(
    ("directory", "earlier", "is_later"),
    [
        ("/out/epoch_1", "/out/epoch_0", True),
        ("/out/epoch=10/ckpt", "/out/epoch=9/ckpt", True),
        ("/out/a/ep2", "/out/a/ep1", True),
        ("/out/epoch_1", "/out/epoch_1", False),
        ("/out/epoch_0", "/out/epoch_1", False),
        ("/other/epoch_1", "/out/epoch_0", False),
        ("/out/version_1", "/out/version_0", False),
        ("/out/step1", "/out/step0", False),
        ("/out/epoch_1", None, False),
    ],
)
def test_which_folders_are_of_a_later_epoch(
    directory: str, earlier: str | None, is_later: bool
) -> None:
    assert is_of_a_later_epoch(directory, earlier) is is_later


def commits_new(history: History, step: int) -> None:
    """A command commits a step in the present attempt."""
    history.happens(CheckpointCommitted(history.now, history.state.phase, step, new=True))


def with_base_model(given: RestartPolicy = FINDS) -> History:
    """A job whose program has copied a base model, of step 50000."""
    history = job(given)
    finds(history, "/out/base")
    commits_new(history, 50000)
    return history


def test_the_steps_of_the_program_count_beside_a_base_model() -> None:
    history = with_base_model()
    finds(history)
    commits_new(history, 7)
    (line,) = history.told
    assert line.text == (
        "checkpoint of step 7 is committed: the steps of the program count from here, "
        "step 50000 may be a base model's or an earlier run's"
    )
    for step in (8, 9, 10, 11):
        history.ends(WorkerExit(0, signal="SIGKILL"))
        history.gone(committed=50000)  # a look sees the highest one
        assert history.state.newest == history.state.budget.highest == step - 1
        if history.state.backoff is not None:
            history.waits()
        history.runs()
        commits_new(history, step)
        assert history.state.budget.restarts == 0
    history.starts(50000)
    assert history.state.newest == 11


@pytest.mark.parametrize(
    ("commits", "committed", "is_success"),
    [
        ((), 50000, False),
        ((70,), 50000, False),
        ((70, 100), 50000, True),
        ((70, 100), 100, True),
    ],
)
def test_a_base_model_proves_no_success(
    commits: tuple[int, ...], committed: int, *, is_success: bool
) -> None:
    history = with_base_model()
    for step in commits:
        commits_new(history, step)
    history.ends(WorkerExit(0, code=0))
    history.gone(None, committed=committed)
    assert (history.state.status is Status.SUCCEEDED) is is_success
    if not is_success:
        failure = history.state.last_failure
        assert failure is not None
        assert failure.rule == "early-exit"
        assert "may be a base model's" in failure.reason
        assert history.state.budget.restarts == 1


@pytest.mark.parametrize(
    ("step", "reported", "is_success"),
    [(100, None, True), (101, None, True), (150, None, False), (150, 150, True), (150, 99, False)],
)
def test_an_only_step_proves_success_at_the_target_or_if_the_program_counts_so_far(
    step: int, reported: int | None, *, is_success: bool
) -> None:
    history = job()
    history.commits(step)
    history.ends(WorkerExit(0, code=0))
    gone = WorkersGone(history.now, 1, None, resumed_from=None, step=reported, committed=step)
    history.happens(gone)
    assert (history.state.status is Status.SUCCEEDED) is is_success


def test_what_an_earlier_attempt_counted_to_is_its_own() -> None:
    history = job()
    history.commits(150)
    history.ends(WorkerExit(0, signal="SIGKILL"))
    gone = WorkersGone(history.now, 1, RETRY, resumed_from=None, step=150, committed=150)
    history.happens(gone)
    history.runs()
    history.ends(WorkerExit(0, code=0))
    history.gone(None, committed=150)
    assert history.state.status is Status.SUCCEEDED
