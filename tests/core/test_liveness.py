"""The hang watchdog: which silence is too long, and what is done about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.decisions import (
    DumpStacks,
    KillWorkers,
    ProbeDevices,
    SignalWorkers,
    StartWorkers,
)
from supervisor.core.events import (
    DeadlineReached,
    NativeStacks,
    SilenceExcused,
    StopRequested,
    StopSource,
    WorkerReported,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.liveness import DEFAULT_DEADLINES, Liveness, Silence
from supervisor.core.policy import PhasePolicy
from supervisor.core.state import Status
from supervisor.diagnosis.failure import WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.protocol.messages import (
    EvaluatedMessage,
    Message,
    Stage,
    StageMessage,
    StepMessage,
    StepsDroppedMessage,
)
from tests.core.history import FATAL, PREEMPTED, History, policy


def watched(workers: int = 1, **deadlines: float) -> History:
    """A job whose workers report their stages, running since time 0."""
    limits = {Stage(name): seconds for name, seconds in deadlines.items()}
    phase = PhasePolicy("only", 3, 2, Success(step=100), reports_stages=True, deadlines=limits)
    history = History(policy(phase))
    history.starts()
    history.runs(workers)
    return history


def says(history: History, message: Message, after: float = 0.0) -> None:
    history.now += after
    history.happens(WorkerReported(history.now, history.state.attempt, 0, message))


def limit(history: History) -> float:
    assert history.state.deadline is not None
    return history.state.deadline - history.now


def falls_silent(history: History) -> tuple[object, ...]:
    assert history.state.deadline is not None
    history.now = history.state.deadline
    silence = history.state.silence(history.now)
    return history.happens(DeadlineReached(history.now, silence))


@pytest.mark.parametrize("stage", Stage)
def test_each_stage_has_its_own_limit(stage: Stage) -> None:
    history = watched()
    says(history, StageMessage(stage), after=1.0)
    assert limit(history) == DEFAULT_DEADLINES[stage]


def test_a_worker_that_is_known_to_report_is_watched_from_its_start() -> None:
    assert limit(watched()) == DEFAULT_DEADLINES[Stage.STARTING]


def test_any_other_is_watched_from_its_first_word() -> None:
    history = History(policy())
    history.starts()
    history.runs()
    assert history.state.deadline is None
    says(history, StepMessage(1))
    assert limit(history) == DEFAULT_DEADLINES[Stage.TRAINING]


def test_an_inferred_stage_without_a_deadline_is_known_all_the_same() -> None:
    before = Liveness().heard(StageMessage(Stage.COMPILING, inferred=True), 1.0, {})
    after = before.heard(StageMessage(Stage.TRAINING, inferred=True), 5.0, {})
    assert (after.stage, after.since, after.expires) == (Stage.TRAINING, 5.0, None)


def test_what_is_inferred_limits_training_only_between_steps() -> None:
    """What is taken for training may be an evaluation: nothing shorter is learned from steps."""
    history = watched()
    says(history, StageMessage(Stage.COMPILING, inferred=True))
    assert limit(history) == DEFAULT_DEADLINES[Stage.COMPILING]
    says(history, StageMessage(Stage.TRAINING, inferred=True))
    assert history.state.deadline is None
    for step in range(30):
        says(history, StepMessage(step), after=1.0)
    assert limit(history) == DEFAULT_DEADLINES[Stage.TRAINING]
    says(history, StageMessage(Stage.SAVING, inferred=True))
    assert limit(history) == DEFAULT_DEADLINES[Stage.SAVING]


def test_a_deadline_of_the_config_beats_what_is_learned() -> None:
    history = watched(TRAINING=123.0)
    for step in range(30):
        says(history, StepMessage(step), after=1.0)
    assert limit(history) == 123.0


def test_every_step_winds_the_clock_but_other_words_do_not() -> None:
    history = watched()
    says(history, StageMessage(Stage.TRAINING))
    deadline = history.state.deadline
    says(history, EvaluatedMessage(1), after=5.0)
    assert history.state.deadline == deadline
    says(history, StepMessage(1), after=5.0)
    assert limit(history) == DEFAULT_DEADLINES[Stage.TRAINING]


def trained(gaps: list[float]) -> History:
    history = watched()
    says(history, StageMessage(Stage.TRAINING))
    says(history, StepMessage(0))
    for step, gap in enumerate(gaps, start=1):
        says(history, StepMessage(step), after=gap)
    return history


def test_the_gap_between_steps_is_learned_without_the_warm_up() -> None:
    assert limit(trained([90.0] * 5 + [7.0] * 9)) == DEFAULT_DEADLINES[Stage.TRAINING]
    assert limit(trained([90.0] * 5 + [7.0] * 10)) == 5 * 7.0
    assert limit(trained([90.0] * 5 + [7.0, 9.0] * 5)) == 5 * 9.0
    assert limit(trained([90.0] * 5 + [9.0] + [7.0] * 9)) == 5 * 9.0, "the first that counts"


def test_what_is_learned_is_never_below_ten_seconds() -> None:
    assert limit(trained([0.1] * 30)) == 10.0


@given(st.lists(st.floats(0.0, 300.0), min_size=20, max_size=40))
def test_what_is_learned_from_the_output_only_makes_a_limit_longer(gaps: list[float]) -> None:
    """A buffer may let 15 steps through at once, and then none for an hour."""
    history = watched()
    says(history, StageMessage(Stage.TRAINING))
    for step, gap in enumerate(gaps):
        says(history, StepMessage(step, in_output=True), after=gap)
    learned = 5 * max(gaps[6:])
    assert limit(history) == pytest.approx(max(DEFAULT_DEADLINES[Stage.TRAINING], learned))


REPORTS = st.one_of(
    st.builds(StageMessage, st.sampled_from(Stage), st.none() | st.integers(0, 9), st.booleans()),
    st.builds(StepMessage, st.integers(0, 99), in_output=st.booleans()),
)
RECOGNISED = st.one_of(
    st.builds(StepMessage, st.integers(0, 99), in_output=st.just(True), recognised=st.just(True)),
    st.just(StepsDroppedMessage()),
)


@given(
    st.lists(st.tuples(st.floats(0.0, 4000.0), REPORTS | RECOGNISED), max_size=60),
    st.sampled_from([{}, {Stage.TRAINING: 5.0}]),
)
def test_recognised_steps_change_no_limit(
    heard: list[tuple[float, Message]], overrides: dict[Stage, float]
) -> None:
    """Whatever is recognised: a job that falls silent has the limits that it has without."""
    both = honest = Liveness()
    now = 0.0
    for after, message in heard:
        now += after
        both = both.heard(message, now, overrides)
        is_recognised = isinstance(message, StepsDroppedMessage) or (
            isinstance(message, StepMessage) and message.recognised
        )
        if not is_recognised:
            honest = honest.heard(message, now, overrides)
        assert both.expires == honest.expires
        assert replace(both, step=None, recognised=False) == replace(honest, step=None)
        if not both.recognised:
            assert both.step == honest.step


def test_a_program_that_prints_steps_of_something_else_may_be_silent_for_hours() -> None:
    history = History(policy())
    history.starts()
    history.runs()
    says(history, StageMessage(Stage.TRAINING, inferred=True))
    for step in range(40):
        says(history, StepMessage(step, in_output=True, recognised=True), after=1.0)
    assert history.state.liveness.step == 39
    assert history.state.deadline is None
    says(history, StepsDroppedMessage())
    assert history.state.liveness.step is None
    says(history, StepMessage(3))
    says(history, StepMessage(50, in_output=True, recognised=True))
    assert history.state.liveness.step == 3, "a report comes before what is recognised"
    assert limit(history) == DEFAULT_DEADLINES[Stage.TRAINING]


def test_an_interruption_of_training_is_not_a_gap_between_steps() -> None:
    history = trained([1.0] * 4)
    for step in range(10, 25):
        says(history, StepMessage(step), after=3.0)
        says(history, StageMessage(Stage.EVALUATING, step), after=0.5)
        says(history, StageMessage(Stage.TRAINING, step), after=400.0)
    assert history.state.liveness.learned[Stage.TRAINING].longest <= 3.0


@pytest.mark.parametrize("stage", [Stage.EVALUATING, Stage.SAVING])
def test_what_recurs_is_learned_without_the_first(stage: Stage) -> None:
    history = watched()
    for seconds in (100.0, 4.0, 6.0):
        says(history, StageMessage(stage))
        assert limit(history) == DEFAULT_DEADLINES[stage]
        says(history, StageMessage(Stage.TRAINING), after=seconds)
    says(history, StageMessage(stage))
    assert limit(history) == 5 * 6.0


def test_a_stage_that_is_named_again_has_not_ended() -> None:
    history = watched()
    for _ in range(9):
        says(history, StageMessage(Stage.SAVING), after=3.0)
    assert limit(history) == DEFAULT_DEADLINES[Stage.SAVING]


def test_the_step_is_the_last_one_that_was_named() -> None:
    history = watched()
    says(history, StageMessage(Stage.TRAINING, 7))
    assert history.state.liveness.step == 7
    says(history, StageMessage(Stage.EVALUATING))
    assert history.state.liveness.step == 7
    says(history, StepMessage(8))
    assert history.state.liveness.step == 8


def test_silence_is_known_only_when_the_limit_is_reached_and_says_how_long_it_lasts() -> None:
    history = History(policy())
    history.starts()
    history.runs()
    assert history.state.silence(1e9) is None, "nobody has promised to speak"
    says(history, StageMessage(Stage.SAVING), after=50.0)
    expires = history.state.deadline
    assert expires is not None
    assert history.state.silence(expires - 0.1) is None
    assert history.state.silence(expires) == Silence(1, Stage.SAVING, expires - 50.0)


def test_words_of_an_earlier_attempt_are_not_heard() -> None:
    history = watched()
    history.ends(WorkerExit(0, code=1))
    history.gone()
    history.runs()
    before = history.state
    assert history.happens(WorkerReported(9.0, 1, 0, StepMessage(5))) == ()
    assert history.state == before


def test_what_comes_once_is_not_learned() -> None:
    """The next compilation may find a cold cache."""
    history = watched()
    for _ in range(9):
        says(history, StageMessage(Stage.COMPILING))
        says(history, StageMessage(Stage.TRAINING), after=2.0)
    says(history, StageMessage(Stage.COMPILING))
    assert limit(history) == DEFAULT_DEADLINES[Stage.COMPILING]


def test_a_hang_is_dumped_asked_killed_and_charged() -> None:
    history = watched()
    says(history, StageMessage(Stage.SAVING, 7))
    assert [type(d) for d in falls_silent(history)] == [DumpStacks]
    assert history.state.status is Status.STOPPING
    assert limit(history) == history.policy.stack_dump
    assert [type(d) for d in history.waits()] == [SignalWorkers]
    assert limit(history) == history.policy.grace_period
    assert [type(d) for d in history.waits()] == [KillWorkers]
    history.gone()
    assert history.state.budget.restarts == 1
    failure = history.state.last_failure
    assert failure is not None
    assert (failure.rule, failure.cause) == ("hang", "hang in stage SAVING")
    assert history.starts_decided == [1, 2]


def dumping(history: History, *, written: bool, attempt: int = 1) -> None:
    assert history.happens(NativeStacks(history.now, attempt, written=written)) == ()


def test_a_group_whose_native_stacks_are_written_is_asked_to_stop_later() -> None:
    """And has its whole grace period then."""
    history = watched()
    falls_silent(history)
    dumping(history, written=False)
    assert limit(history) == history.policy.native_stacks
    dumping(history, written=True, attempt=2)
    assert limit(history) == history.policy.native_stacks, "that is about another attempt"
    dumping(history, written=True)
    assert limit(history) == history.policy.stack_dump
    assert [type(d) for d in history.waits()] == [SignalWorkers]
    dumping(history, written=True)
    assert limit(history) == history.policy.grace_period, "it is late"


def test_native_stacks_that_take_too_long_are_not_waited_for() -> None:
    history = watched()
    falls_silent(history)
    dumping(history, written=False)
    assert [type(d) for d in history.waits()] == [SignalWorkers]
    assert limit(history) == history.policy.grace_period


def test_a_job_that_is_to_stop_does_not_wait_for_native_stacks() -> None:
    history = watched()
    falls_silent(history)
    dumping(history, written=False)
    stop = StopRequested(history.now, StopSource.SIGTERM)
    assert [type(d) for d in history.happens(stop)] == [SignalWorkers]
    dumping(history, written=True)
    assert limit(history) == history.policy.grace_period


def test_a_hang_spends_the_restart_budget_whatever_it_then_dies_of() -> None:
    for end in (FATAL, PREEMPTED):
        history = watched()
        falls_silent(history)
        history.waits()
        history.ends(WorkerExit(0, signal="SIGTERM"))
        history.gone(end)
        assert history.state.budget.restarts == 1
        assert history.state.budget.preemptions == 0
        assert history.finish is None


def test_marks_of_a_dead_attempt_do_not_condemn_the_next() -> None:
    history = trained([1.0] * 20)
    history.ends(WorkerExit(0, code=1))
    history.gone()
    history.runs()
    assert limit(history) == DEFAULT_DEADLINES[Stage.STARTING]
    assert history.state.liveness.learned == {}


@pytest.mark.parametrize("launches", [False, True])
def test_nobody_is_listened_for_between_two_attempts(launches: bool) -> None:
    history = watched()
    history.ends(WorkerExit(0, code=1))
    history.gone()
    says(history, StageMessage(Stage.STARTING))
    if launches:
        history.runs()
        history.ends(WorkerExit(0, code=1))
        history.gone()
    else:
        history.cannot_launch()
    assert history.state.backoff is not None
    assert history.state.liveness == Liveness()


def test_silence_of_an_earlier_attempt_or_after_a_stop_is_nothing() -> None:
    history = watched()
    stale = DeadlineReached(1e6, Silence(0, Stage.TRAINING, 1e6))
    assert history.happens(stale) == ()
    history.stops()
    assert history.happens(DeadlineReached(1.0, Silence(1, Stage.TRAINING, 1e6))) == ()


def test_a_group_that_ends_while_its_stacks_are_dumped_is_only_confirmed_gone() -> None:
    history = watched()
    falls_silent(history)
    assert [type(d) for d in history.ends(WorkerExit(0, code=1))] == [KillWorkers]
    assert [type(d) for d in history.waits()] == [KillWorkers], "nobody is left to be asked"


def test_a_stop_during_the_dump_of_a_hang_leaves_the_whole_grace_period() -> None:
    history = watched()
    falls_silent(history)
    assert [type(d) for d in history.stops()] == [SignalWorkers]
    assert limit(history) == history.policy.grace_period
    history.waits()
    history.gone()
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.DRAINED


def test_a_trainer_that_finished_but_did_not_exit_has_succeeded_if_its_end_is_clean() -> None:
    history = watched()
    says(history, StageMessage(Stage.FINISHING, 100))
    falls_silent(history)
    history.waits()
    history.ends(WorkerExit(0, code=0))
    history.gone(None)
    assert history.finish is not None
    assert history.finish.exit_code == ExitCode.SUCCEEDED


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.SAVING])
def test_the_time_that_is_excused_is_no_silence_of_the_workers(stage: Stage) -> None:
    history = watched()
    says(history, StageMessage(stage), after=1.0)
    before = limit(history)
    history.happens(SilenceExcused(history.now, 10.0, "the machine slept for 60 s"))
    assert limit(history) == before + 10.0


@pytest.mark.parametrize(
    ("workers", "ended", "who"), [(1, [], "it"), (3, [1], "any rank"), (3, [0, 1], "rank 2")]
)
def test_a_hang_tells_who_is_silent(workers: int, ended: list[int], who: str) -> None:
    history = watched(workers, TRAINING=20.0)
    says(history, StepMessage(1))
    history.ends(*(WorkerExit(rank, code=0) for rank in ended))
    (dump,) = falls_silent(history)
    assert isinstance(dump, DumpStacks)
    assert dump.reason.startswith(f"nothing was heard of {who} for 20.0 s")


def test_a_hang_tells_all_of_the_silence_also_what_was_excused() -> None:
    history = watched(TRAINING=20.0)
    says(history, StepMessage(1))
    history.now += 5.0
    history.happens(SilenceExcused(history.now, 10.0, "the machine slept for 60 s"))
    (dump,) = falls_silent(history)
    assert isinstance(dump, DumpStacks)
    assert dump.reason.startswith("nothing was heard of it for 30.0 s")
    again = watched(TRAINING=20.0)
    again.happens(SilenceExcused(0.0, 10.0, "the machine slept for 60 s"))
    says(again, StepMessage(1))
    (dump,) = falls_silent(again)
    assert isinstance(dump, DumpStacks)
    assert dump.reason.startswith("nothing was heard of it for 20.0 s"), "since its last report"


def test_an_excuse_watches_nobody_who_was_not_watched() -> None:
    history = History(policy())
    history.starts()
    history.runs()
    history.happens(SilenceExcused(history.now, 10.0, "the machine slept for 60 s"))
    assert history.state.deadline is None


def test_a_first_initialisation_that_hangs_is_tried_once_more_with_all_its_time() -> None:
    """Nothing is charged (no restart is allowed here), and no device is blamed or looked at."""
    two = PhasePolicy("only", 0, 0, Success(step=100), True, rungs=(2, 1), units=("0", "1"))
    phase = replace(two, first_initialising=9.0)
    history = History(policy(phase))
    history.starts()

    def hangs() -> tuple[object, ...]:
        falls_silent(history)
        history.ends(WorkerExit(0, signal="SIGKILL"))
        return history.gone()

    history.runs()
    says(history, StageMessage(Stage.INITIALIZING), after=1.0)
    assert limit(history) == 9.0
    (again,) = hangs()
    assert isinstance(again, StartWorkers)
    assert "nothing is charged or blamed" in again.reason

    history.runs()
    says(history, StageMessage(Stage.INITIALIZING), after=1.0)
    assert limit(history) == DEFAULT_DEADLINES[Stage.INITIALIZING]
    assert [type(decision) for decision in hangs()] == [ProbeDevices]


def test_a_limit_of_the_config_is_the_only_one_of_an_initialisation() -> None:
    limits = {Stage.INITIALIZING: 30.0}
    phase = PhasePolicy("only", 0, 0, Success(step=100), True, limits, first_initialising=9.0)
    history = History(policy(phase))
    history.starts()
    history.runs()
    says(history, StageMessage(Stage.INITIALIZING))
    assert limit(history) == 30.0
    falls_silent(history)
    history.ends(WorkerExit(0, signal="SIGKILL"))
    history.gone()
    assert history.state.status is Status.FAILED
