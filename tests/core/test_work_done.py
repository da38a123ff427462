"""A program whose last step is committed, and that does not exit: its work is done."""

from __future__ import annotations

import pytest

from supervisor.core.decisions import DumpStacks, FinishJob, KillWorkers, SignalWorkers
from supervisor.core.events import DeadlineReached, StopSource, WorkersIdle
from supervisor.core.exit_codes import ExitCode
from supervisor.core.idleness import Activity, Idleness
from supervisor.core.liveness import Silence
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.protocol.messages import Stage
from tests.core.history import RETRY, TWO, History, policy, started

LONG = 300.0
"""The default time limit of FINISHING."""


def idles(
    history: History,
    seconds: float = LONG,
    stage: Stage | None = None,
    trained: bool | None = None,
) -> list[type[object]]:
    """The kinds of what is decided once the group did nothing for so long."""
    event = WorkersIdle(history.now, history.state.attempt, seconds, stage, trained)
    return [type(decision) for decision in history.happens(event)]


def committed(step: int = 100) -> History:
    """A job of 100 steps whose first attempt runs, and has committed two."""
    history = started()
    history.runs()
    history.commits(50)
    history.commits(step)
    return history


def test_it_is_asked_to_end_and_is_a_success_although_it_had_to_be_killed() -> None:
    history = committed()
    assert idles(history) == [SignalWorkers]
    assert history.state.deadline == history.now + history.policy.grace_period
    assert [type(decision) for decision in history.waits()] == [KillWorkers]
    (finish,) = history.gone(RETRY, committed=100)
    assert isinstance(finish, FinishJob)
    assert (finish.status, finish.exit_code) == (Status.SUCCEEDED, ExitCode.SUCCEEDED)
    assert finish.reason == (
        "the job succeeded; step 100 is committed, and the program did not exit within 300 s: it "
        "was ended, and its work is done"
    )
    assert history.state.budget.total == 0
    assert history.told[-1].event == "job-ended"


@pytest.mark.parametrize("stage", [None, Stage.TRAINING, Stage.FINISHING])
def test_it_may_be_between_its_stages(stage: Stage | None) -> None:
    assert idles(committed(), stage=stage) == [SignalWorkers]


@pytest.mark.parametrize("stage", [Stage.SAVING, Stage.EVALUATING, Stage.COMPILING])
def test_what_it_has_under_way_has_a_deadline_of_its_own(stage: Stage) -> None:
    assert idles(committed(), stage=stage) == []


def test_nothing_is_ended_without_the_commit_or_before_its_time() -> None:
    assert idles(committed(99)) == []
    history = committed()
    assert idles(history, LONG - 1) == []
    other = WorkersIdle(history.now, history.state.attempt + 1, LONG)
    assert history.happens(other) == ()


@pytest.mark.parametrize(("trained", "is_ended"), [(True, True), (False, False), (None, False)])
def test_a_lone_step_may_be_a_base_models(trained: bool | None, *, is_ended: bool) -> None:
    """A program that has copied one and waits for its data does nothing either."""
    history = started()
    history.runs()
    history.commits(100)
    assert bool(idles(history, trained=trained)) is is_ended
    if not is_ended:
        assert silent(history, LONG) == [DumpStacks]
        history.waits()
        history.waits()
        history.gone(RETRY, committed=100, trained=trained)
        assert history.finish is None
        assert history.state.last_failure is not None
        assert history.state.last_failure.rule == "hang"


def test_nothing_is_ended_where_no_step_is_declared() -> None:
    history = started(policy(PhasePolicy("only", 3, 2, Success())))
    history.runs()
    history.commits(100)
    assert idles(history) == []


def test_the_deadline_of_finishing_is_its_time() -> None:
    phase = PhasePolicy("only", 3, 2, Success(step=100), deadlines={Stage.FINISHING: 20.0})
    history = started(policy(phase))
    history.runs()
    history.commits(50)
    history.commits(100)
    assert idles(history, 19.0) == []
    assert idles(history, 20.0) == [SignalWorkers]


EACH = policy(
    PhasePolicy("one", 1, 1, Success(step=10), deadlines={Stage.FINISHING: 20.0}),
    PhasePolicy("two", 1, 1, Success(step=20), deadlines={Stage.FINISHING: 1000.0}),
)
"""Two phases, each with its own time to exit and its own last step."""


def in_the_second_phase() -> History:
    history = started(EACH)
    history.runs()
    history.commits(10)
    history.ends(WorkerExit(0, code=0))
    history.gone(None, committed=10)
    history.begins()
    history.runs()
    assert history.state.phase == 1
    return history


def test_each_phase_has_its_own_time_to_exit() -> None:
    history = in_the_second_phase()
    history.commits(10)
    assert idles(history, 1000.0) == [], "the step of the first phase is not the last one"
    history.commits(20)
    assert idles(history, 999.0) == []
    assert idles(history, 1000.0) == [SignalWorkers]


def test_a_silent_group_has_the_time_of_its_phase() -> None:
    history = in_the_second_phase()
    history.commits(20)
    assert silent(history, 999.0) == []
    assert history.state.deadline == history.now + 1.0
    assert silent(history, 1000.0) == [DumpStacks]


def test_a_group_of_a_later_phase_hangs_before_its_last_step() -> None:
    history = in_the_second_phase()
    history.commits(10)
    assert silent(history, 20.0) == [DumpStacks]


def test_no_success_is_claimed_if_the_step_is_not_there_in_the_end() -> None:
    history = committed()
    idles(history)
    history.waits()
    history.gone(RETRY, committed=99)
    assert history.finish is None
    assert history.state.last_failure is not None
    assert history.state.last_failure.cause == "hang in stage FINISHING"
    assert history.state.budget.restarts == 1


def test_the_next_phase_begins() -> None:
    history = started(TWO)
    history.runs()
    history.commits(5)
    history.commits(10)
    assert idles(history) == [SignalWorkers]
    history.waits()
    history.gone(RETRY, committed=10)
    assert (history.state.phase, history.finish) == (1, None)


def test_it_is_a_success_also_if_somebody_wants_a_stop_meanwhile() -> None:
    history = committed()
    idles(history)
    history.stops(StopSource.PERSON)
    history.waits()
    history.gone(RETRY, committed=100)
    assert history.finish is not None
    assert history.finish.exit_code is ExitCode.SUCCEEDED


def silent(history: History, seconds: float) -> list[type[object]]:
    silence = Silence(history.state.attempt, Stage.TRAINING, seconds)
    return [type(each) for each in history.happens(DeadlineReached(history.now, silence))]


def test_it_does_not_hang_if_no_further_step_comes() -> None:
    """Also where a short deadline of steps was learned."""
    history = committed()
    history.now = 60.0
    assert silent(history, 20.0) == []
    assert history.state.deadline == 60.0 + LONG - 20.0
    assert silent(history, LONG) == [DumpStacks]
    history.waits()
    history.waits()
    history.gone(RETRY, committed=100)
    assert history.finish is not None
    assert history.finish.exit_code is ExitCode.SUCCEEDED
    assert history.state.budget.total == 0


def test_before_its_last_step_a_hang_is_a_hang() -> None:
    history = committed(99)
    assert silent(history, 20.0) == [DumpStacks]
    history.waits()
    history.waits()
    history.gone(RETRY, committed=99)
    assert history.state.budget.restarts == 1


STILL = (Activity(reports=3, output=100, cpu=7.0),)


def looks(*workers: tuple[Activity, ...]) -> float:
    """For how long they are idle, if there is a look at them every 5 s."""
    idleness = Idleness()
    for number, seen in enumerate(workers):
        idleness = idleness.looked(5.0 * number, seen)
    return idleness.seconds


@pytest.mark.parametrize(
    "then",
    [
        Activity(reports=4, output=100, cpu=7.0),
        Activity(reports=3, output=101, cpu=7.0),
        Activity(reports=3, output=100, cpu=7.5),
        Activity(reports=3, output=100, cpu=6.0),
    ],
)
def test_whoever_reports_prints_or_computes_is_not_idle(then: Activity) -> None:
    assert looks(STILL, STILL, STILL) == 10.0
    assert looks(STILL, STILL, (then,)) == 0.0
    assert looks(STILL, (then,), (then,)) == 5.0


def test_the_threads_of_an_idle_program_are_no_work() -> None:
    assert looks(STILL, (Activity(reports=3, output=100, cpu=7.1),)) == 5.0


def test_all_workers_must_be_idle() -> None:
    works = (Activity(cpu=1.0), Activity(cpu=5.0))
    assert looks((Activity(cpu=1.0), Activity(cpu=1.0)), works) == 0.0
    assert looks(works, works[:1], works[:1]) == 5.0, "one of them has ended"


def test_time_in_which_nobody_looked_is_not_idle_time() -> None:
    assert Idleness().looked(0.0, STILL).looked(3600.0, STILL).seconds == 10.0
