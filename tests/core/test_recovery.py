"""What a recovery is said to have taken: histories, and the parts that they add up to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.core.decisions import TellRecovery
from supervisor.core.events import (
    DeadlineReached,
    Event,
    LaunchFailed,
    PhaseBegun,
    StopSource,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.recovery import Recovery
from supervisor.diagnosis.failure import Failure, Survivor, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.protocol.messages import (
    EvaluatedMessage,
    Message,
    RestoredMessage,
    Stage,
    StageMessage,
    StepMessage,
)
from tests.core.history import RETRY, SAME, History, policy

KILLED = WorkerExit(0, signal="SIGKILL")


def job(*, reports: bool = True, phases: int = 1, workers: int = 1) -> History:
    """A job whose first attempt runs since time 0."""
    one = PhasePolicy("only", 3, 2, Success(step=100), reports_stages=reports)
    many = tuple(replace(one, name=f"phase{number}") for number in range(phases))
    plain: RestartPolicy = policy(*many)
    history = History(replace(plain, backoff_first=8.0, backoff_jitter=0.0))
    history.starts()
    history.happens(WorkersStarted(0.0, 1, tuple(range(1000, 1000 + workers))))
    return history


def says(at: float, message: Message) -> Callable[[History], Event]:
    return lambda history: WorkerReported(at, history.state.attempt, 0, message)


def enters(at: float, stage: Stage, *, inferred: bool = False) -> Callable[[History], Event]:
    return says(at, StageMessage(stage, inferred=inferred))


def ends(at: float, *exits: WorkerExit) -> Callable[[History], Event]:
    pids = tuple(range(1000, 1000 + max(1, len(exits))))
    return lambda history: WorkersObserved(at, history.state.attempt, pids, exits or (KILLED,))


def gone(
    at: float, step: int | None = None, failure: Failure | None = RETRY
) -> Callable[[History], Event]:
    return lambda history: WorkersGone(at, history.state.attempt, failure, None, step, None)


def starts(at: float, began: float | None = None) -> Callable[[History], Event]:
    return lambda history: WorkersStarted(at, history.state.attempt, (1000,), began)


def told(history: History, *events: Callable[[History], Event]) -> list[TellRecovery]:
    """What is told of recoveries while `events` happen."""
    decided = [d for event in events for d in history.happens(event(history))]
    return [d for d in decided if isinstance(d, TellRecovery)]


DEATH = (ends(10.0), gone(10.5, step=20), starts(11.0, began=10.75))


@pytest.mark.parametrize(
    ("rest", "parts"),
    [
        pytest.param(
            (
                enters(12.0, Stage.INITIALIZING),
                enters(14.0, Stage.RESTORING),
                enters(17.0, Stage.COMPILING),
                enters(21.0, Stage.TRAINING),
                says(26.0, StepMessage(16)),
            ),
            {"imports": 1, "backend": 2, "restore": 3, "compile": 4, "first step": 5},
            id="every stage",
        ),
        pytest.param(
            (
                enters(12.0, Stage.COMPILING),
                enters(14.0, Stage.RESTORING),
                enters(15.0, Stage.COMPILING),
                enters(17.0, Stage.TRAINING),
                says(18.0, StepMessage(16)),
            ),
            {"imports": 1, "compile": 4, "restore": 1, "first step": 1},
            id="another order, one of them twice",
        ),
        pytest.param(
            (
                enters(12.0, Stage.EVALUATING),
                enters(15.0, Stage.TRAINING),
                says(16, StepMessage(1)),
            ),
            {"imports": 1, "program": 3, "first step": 1},
            id="what no recovery needs",
        ),
        pytest.param((says(13.0, StepMessage(16)),), {"imports": 2}, id="a step and nothing else"),
    ],
)
def test_the_parts_of_a_recovery(
    rest: tuple[Callable[[History], Event], ...], parts: dict[str, float]
) -> None:
    (recovery,) = told(job(), *DEATH, *rest)
    ours = {"detect": 0.0, "clean up": 0.5, "decide": 0.25, "start": 0.25}
    assert dict(recovery.parts) == {**ours, **parts}
    assert list(recovery.parts) == [*ours, *parts]
    assert recovery.seconds == 1.0 + sum(parts.values())
    assert recovery.attempt == 2


def test_stages_that_are_only_inferred() -> None:
    """What lies between them may be anything; the one that a step comes in was training."""
    (recovery,) = told(
        job(reports=False),
        *DEATH,
        enters(13.0, Stage.COMPILING, inferred=True),
        enters(14.0, Stage.TRAINING, inferred=True),
        enters(17.0, Stage.COMPILING, inferred=True),
        enters(18.0, Stage.TRAINING, inferred=True),
        says(18.5, StepMessage(16)),
    )
    told_of_program = {part: recovery.parts[part] for part in list(recovery.parts)[4:]}
    assert told_of_program == {"program": 5.0, "compile": 2.0, "first step": 0.5}


def test_an_event_that_comes_late_takes_no_time() -> None:
    """Threads post them: their order is not that of their times."""
    late = (
        enters(12.0, Stage.RESTORING),
        enters(11.5, Stage.COMPILING),
        says(13.0, StepMessage(1)),
    )
    (recovery,) = told(job(), *DEATH, *late)
    assert recovery.parts["restore"] == 0.0
    assert recovery.seconds == 3.0


def test_a_program_that_tells_its_steps_alone() -> None:
    (recovery,) = told(job(reports=False), *DEATH, says(13.0, StepMessage(16)))
    assert recovery.parts["program"] == 2.0


def test_a_standby_has_no_imports() -> None:
    (recovery,) = told(
        job(),
        *DEATH[:2],
        lambda history: WorkersStarted(11.0, 2, (1000,), 10.75, standby=True),
        enters(11.5, Stage.RESTORING),
        says(12.0, StepMessage(16)),
    )
    assert "imports" not in recovery.parts
    assert recovery.parts["standby"] == 0.5


def test_a_start_whose_beginning_is_not_known_is_one_part() -> None:
    (recovery,) = told(job(), ends(10.0), gone(10.5), starts(11.0), says(11.0, StepMessage(1)))
    assert dict(recovery.parts) == {"detect": 0, "clean up": 0.5, "start": 0.5, "imports": 0}


@pytest.mark.parametrize(
    ("reached", "restored", "lost"),
    [(20, 15, 5), (20, None, 20), (20, 20, 0), (15, 16, 0), (None, 15, None)],
)
def test_lost_work(reached: int | None, restored: int | None, lost: int | None) -> None:
    events = (ends(10.0), gone(10.0, step=reached), starts(10.0))
    resumed = says(10.0, RestoredMessage(restored)), says(11.0, StepMessage(16))
    (recovery,) = told(job(), *events, *resumed)
    assert recovery.lost == lost
    assert recovery.step == 16


@pytest.mark.parametrize(
    ("newest", "every", "lost"),
    [
        (15, None, 5),
        (12, None, None),  # it tells only some steps, or restored a step that nobody saw
        (None, None, None),
        (16, None, None),
        (12, 4, 8),
        (12, 3, None),
        (None, 4, None),
        (12, 1, 5),
        (None, 1, 5),
    ],
)
def test_lost_work_of_a_program_that_does_not_report_what_it_restored(
    newest: int | None, every: int | None, lost: int | None
) -> None:
    history = job()
    if newest is not None:
        history.commits(newest)
    (recovery,) = told(history, *DEATH, says(13.0, StepMessage(16, every=every)))
    assert recovery.lost == lost


def test_it_is_told_once_and_only_after_a_death() -> None:
    history = job()
    assert told(history, enters(1.0, Stage.TRAINING), says(2.0, StepMessage(1))) == []
    assert len(told(history, *DEATH, says(13.0, StepMessage(16)))) == 1
    assert told(history, says(14.0, StepMessage(17)), enters(15.0, Stage.SAVING)) == []
    assert history.state.recovery == Recovery()


def test_an_evaluation_is_no_step() -> None:
    assert told(job(), *DEATH, says(13.0, EvaluatedMessage(16))) == []


def test_an_attempt_that_dies_before_its_first_step_prolongs_the_recovery() -> None:
    """The work of the attempt before it is still lost, and what it restored says nothing."""
    (recovery,) = told(
        job(),
        *DEATH,
        says(12.0, RestoredMessage(15)),
        enters(13.0, Stage.COMPILING),
        ends(14.0),
        gone(15.0, step=15),
        lambda history: DeadlineReached(history.state.due or 0.0),
        starts(24.0, began=23.0),
        says(26.0, RestoredMessage(10)),
        says(26.0, StepMessage(11)),
    )
    assert dict(recovery.parts) == {
        "earlier attempts": 4.0,
        "detect": 0.0,
        "clean up": 1.0,
        "backoff": 8.0,
        "decide": 0.0,
        "start": 1.0,
        "imports": 2.0,
    }
    assert recovery.lost == 10
    assert recovery.attempt == 3


def test_a_launch_that_fails_prolongs_it_too() -> None:
    (recovery,) = told(
        job(),
        *DEATH[:2],
        lambda history: LaunchFailed(12.0, 2, SAME),
        lambda history: DeadlineReached(history.state.due or 0.0),
        starts(21.0, began=20.0),
        says(22.0, StepMessage(11)),
    )
    parts = {"earlier attempts": 2.0, "backoff": 8.0, "decide": 0.0, "start": 1.0, "imports": 1.0}
    assert dict(recovery.parts) == parts


def test_a_hang_is_detected_by_silence_and_stopped_for_a_while() -> None:
    history = job()
    told(history, enters(2.0, Stage.TRAINING))

    def expires(history: History) -> Event:
        assert history.state.deadline == 602.0
        return DeadlineReached(603.0, history.state.silence(603.0))

    def due(history: History) -> Event:
        assert history.state.due is not None
        return DeadlineReached(history.state.due)

    (recovery,) = told(
        history,
        expires,
        due,  # the stacks are dumped: SIGTERM
        due,  # the grace period is over: SIGKILL
        ends(629.0),
        gone(650.0),
        starts(650.0),
        says(651.0, StepMessage(1)),
    )
    stop = history.policy.stack_dump + history.policy.grace_period
    assert recovery.parts["detect"] == 601.0
    assert recovery.parts["stop"] == stop
    assert recovery.parts["clean up"] == 47.0 - stop
    assert recovery.seconds == 649.0


def test_a_hang_that_ends_when_asked() -> None:
    """Its end is no second death."""
    history = job()
    history.happens(DeadlineReached(300.0, history.state.silence(300.0)))
    (recovery,) = told(history, ends(304.0), gone(305.0), starts(306.0), says(307, StepMessage(1)))
    assert dict(recovery.parts) == {
        "detect": 300.0,
        "stop": 4.0,
        "clean up": 1.0,
        "start": 1.0,
        "imports": 1.0,
    }


def test_the_first_of_several_deaths_counts() -> None:
    history = History(policy())
    history.starts()
    history.happens(WorkersStarted(0.0, 1, (1000, 1001)))

    def dies(at: float, *ranks: int) -> Callable[[History], Event]:
        exits = tuple(WorkerExit(rank, signal="SIGKILL") for rank in ranks)
        return lambda history: WorkersObserved(at, 1, (1000, 1001), exits)

    (recovery,) = told(
        history,
        dies(10.0, 1),
        dies(10.0625, 1, 0),
        gone(10.5),
        starts(11),
        says(12, StepMessage(1)),
    )
    assert recovery.parts["detect"] == 0.0625
    assert recovery.seconds == 2.0


def test_a_kill_that_is_repeated_is_cleaning_up() -> None:
    (recovery,) = told(
        job(),
        ends(10.0),
        lambda history: DeadlineReached(history.state.due or 0.0),
        gone(20.0),
        starts(20.0),
        says(20.0, StepMessage(1)),
    )
    assert recovery.parts["detect"] == 0.0
    assert recovery.parts["clean up"] == 10.0


def test_a_new_supervisor_counts_from_its_own_start() -> None:
    """When its workers died, nobody saw; how far they had got, the journal may tell."""
    history = job()
    told(history, *DEATH)
    (recovery,) = told(
        history,
        lambda history: SupervisorStarted(3.0, "job", history.policy, 15),
        gone(4.0),
        starts(6.0, began=5.0),
        says(6.0, RestoredMessage(15)),
        says(9.0, StepMessage(16)),
    )
    parts = {"detect": 0.0, "clean up": 1.0, "decide": 1.0, "start": 1.0, "imports": 3.0}
    assert dict(recovery.parts) == parts
    assert recovery.lost == 5


def test_the_first_start_of_a_job_recovers_nothing() -> None:
    history = History(policy())
    history.starts()
    assert history.state.recovery == Recovery()


def test_a_new_phase_recovers_nothing() -> None:
    history = job(phases=2)
    history.happens(ends(10.0, WorkerExit(0, code=0))(history))
    history.happens(gone(11.0, step=100, failure=None)(history))
    history.happens(PhaseBegun(12.0, 1, "phase1", None))
    assert told(history, starts(13.0), says(14.0, StepMessage(1))) == []


def test_replaying_the_journal_does_not_depend_on_it() -> None:
    history = job()
    told(history, *DEATH)
    assert history.state.recovery != Recovery()
    assert history.state.durable().recovery == Recovery()


def test_of_several_steps_at_once_the_first_ends_the_recovery() -> None:
    (recovery,) = told(job(), *DEATH, says(13.0, StepMessage(99, first=31, in_output=True)))
    assert recovery.step == 31


def test_a_rank_that_still_steps_while_its_group_dies_ends_no_recovery() -> None:
    history = job(workers=2)
    assert told(history, ends(10.0, replace(KILLED, rank=1)), says(10.05, StepMessage(21))) == []
    history.waits()
    rest = gone(10.5, step=21), starts(11.0), says(12.0, StepMessage(16, every=1))
    (recovery,) = told(history, *rest)
    assert (recovery.attempt, recovery.step, recovery.lost) == (2, 16, 6)
    assert recovery.seconds == 2.0


@pytest.mark.parametrize("exits", [(KILLED,), (WorkerExit(1, code=1),)])
def test_what_goes_on_while_a_stopped_job_ends_is_no_recovery(
    exits: tuple[WorkerExit, ...],
) -> None:
    """A trainer lives on after the shell that started it has died of the drain, or one rank after
    another one: its steps are no new start."""
    history = job(workers=2)
    history.now = 10.0
    history.stops(StopSource.PERSON)
    left = (Survivor(1005, "python train.py"),)
    ended = exits if exits[0].rank else (KILLED, replace(KILLED, rank=1))
    history.happens(WorkersObserved(10.1, 1, (1000, 1001), ended, left))
    assert told(history, says(10.4, StepMessage(107, every=1))) == []


def test_a_step_that_is_read_after_the_death_ends_no_recovery() -> None:
    history = job()
    assert told(history, ends(10.0), says(10.05, StepMessage(21, in_output=True))) == []
    (recovery,) = told(
        history, gone(10.5, step=21), starts(11.0), says(12.0, StepMessage(16, every=1))
    )
    assert (recovery.attempt, recovery.step, recovery.lost) == (2, 16, 6)
    assert recovery.seconds == 2.0


def test_a_rank_that_has_done_its_part_begins_no_recovery() -> None:
    history = job(workers=2)
    done = WorkerExit(1, code=0)
    assert told(history, ends(10.0, done), says(11.0, StepMessage(17))) == []
    killed = ends(20.0, done, KILLED), gone(20.5, step=17), starts(21.0)
    (recovery,) = told(history, *killed, says(23.0, StepMessage(16)))
    assert recovery.seconds == 3.0


@pytest.mark.parametrize(
    ("newest", "reached", "first", "missed"),
    [
        (50, 70, StepMessage(5), 50),
        (50, 70, StepMessage(50), None),  # counted from 0
        (50, 70, StepMessage(51), None),
        (3, 90, StepMessage(5), None),  # the checkpoints count epochs
        (500, 90, StepMessage(5), None),  # a base model's
        (None, 90, StepMessage(5), None),
    ],
)
def test_a_program_that_does_not_restore_its_checkpoint_is_told(
    newest: int | None, reached: int, first: StepMessage, missed: int | None
) -> None:
    history = job(reports=False)
    if newest is not None:
        history.commits(newest)
    (recovery,) = told(history, ends(10.0), gone(10.5, step=reached), starts(11.0), says(12, first))
    assert recovery.missed == missed


def test_what_a_program_says_that_it_restored_is_believed() -> None:
    history = job(reports=False)
    history.commits(50)
    rest = (starts(11.0), says(12.0, RestoredMessage(40)), says(13.0, StepMessage(41)))
    (recovery,) = told(history, ends(10.0), gone(10.5, step=70), *rest)
    assert recovery.missed is None
