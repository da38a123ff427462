"""What the journal tells of an attempt's stages: each second of it, in however few records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.decisions import TellStages
from supervisor.core.events import WorkerReported
from supervisor.core.policy import PhasePolicy
from supervisor.core.stage_times import CHANGES, UNNAMED
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.protocol.messages import Message, Stage, StageMessage, StepMessage
from tests.core.history import History, policy

NAMED = policy(PhasePolicy("only", 3, 2, Success(step=100), reports_stages=True))


def running(given: object = None) -> History:
    """A job whose first attempt runs, from the time 0.0 on."""
    history = History(NAMED if given is None else policy())
    history.starts()
    history.runs()
    return history


def says(history: History, at: float, message: Message) -> list[TellStages]:
    """What is told of the stages when a worker says that."""
    history.now, before = at, len(history.stages)
    history.happens(WorkerReported(at, history.state.attempt, 0, message))
    return history.stages[before:]


def test_each_change_a_new_checkpoint_and_the_end_are_told() -> None:
    history = running()
    says(history, 2.0, StageMessage(Stage.COMPILING))
    says(history, 5.0, StepMessage(1))
    assert says(history, 6.0, StepMessage(2)) == []
    says(history, 6.5, StageMessage(Stage.SAVING))
    history.now = 7.0
    history.commits(2)
    history.commits(2)  # it is no news
    says(history, 8.0, StageMessage(Stage.TRAINING))
    history.now = 9.5
    history.ends(WorkerExit(0, signal="SIGKILL"))
    history.gone()
    assert history.stages == [
        TellStages(1, Stage.COMPILING, None, {"STARTING": 2.0}),
        TellStages(1, Stage.TRAINING, 1, {"COMPILING": 3.0}),
        TellStages(1, Stage.SAVING, 2, {"TRAINING": 1.5}),
        TellStages(1, Stage.SAVING, 2, {"SAVING": 0.5}),
        TellStages(1, Stage.TRAINING, 2, {"SAVING": 1.0}),
        TellStages(1, None, None, {"TRAINING": 1.5}),
    ]
    history.waits()
    history.runs()
    assert len(history.stages) == 6, "the next attempt has its own account"


def test_a_program_that_names_no_stage_trains_from_its_first_step_on() -> None:
    history = running("no stages")
    (first,) = says(history, 3.0, StepMessage(1))
    assert (first.stage, first.seconds) == (Stage.TRAINING, {UNNAMED: 3.0})


def test_what_is_late_or_of_another_attempt_is_not_told() -> None:
    history = running()
    (first,) = says(history, 5.0, StageMessage(Stage.TRAINING))
    (late,) = says(history, 4.0, StageMessage(Stage.SAVING))
    assert (first.seconds, late.seconds) == ({"STARTING": 5.0}, {})
    history.happens(WorkerReported(6.0, 7, 0, StageMessage(Stage.TRAINING)))
    assert history.stages == [first, late]


def test_a_flood_is_told_in_few_records_and_none_of_its_time_is_lost() -> None:
    """A worker that changes its stage a thousand times a second."""
    history, stages = running(), (Stage.TRAINING, Stage.SAVING)
    flood = [says(history, n / 1000, StageMessage(stages[n % 2])) for n in range(1, 30_001)]
    changes = sum(len(each) + sum(one.untold for one in each) for each in flood)
    history.now = 31.0
    history.ends(WorkerExit(0, signal="SIGKILL"))
    history.gone()
    records = history.stages
    assert len(records) - 1 <= CHANGES.at_once + 31 * CHANGES.per_second
    assert changes + records[-1].untold == 30_000
    assert abs(sum(sum(each.seconds.values()) for each in records) - 31.0) < 1e-6


@given(
    st.lists(
        st.tuples(
            st.floats(0, 500),
            st.one_of(
                st.builds(StageMessage, st.sampled_from(Stage), st.integers(0, 9)),
                st.builds(StepMessage, st.integers(0, 9)),
                st.none(),
            ),
        ),
        max_size=80,
    )
)
def test_the_seconds_that_are_told_are_the_whole_attempt(
    said: list[tuple[float, Message | None]],
) -> None:
    history, changes, current = running(), 0, Stage.STARTING
    for number, (wait, message) in enumerate(said):
        history.now += wait
        if message is None:
            history.commits(number)
            continue
        stage = message.stage if isinstance(message, StageMessage) else Stage.TRAINING
        changes, current = changes + (stage is not current), stage
        says(history, history.now, message)
    history.ends(WorkerExit(0, signal="SIGKILL"))
    history.gone()
    records = history.stages
    whole = sum(sum(each.seconds.values()) for each in records)
    assert abs(whole - history.now) <= 1e-6 * max(1.0, history.now)
    commits = len({n for n, (_, message) in enumerate(said) if message is None})
    assert len(records) - commits - 1 + sum(each.untold for each in records) == changes
