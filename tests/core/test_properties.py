"""Totality and invariants of the decision core, over whatever events may come in whatever order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.budget import Charge
from supervisor.core.decisions import (
    ONLY_TOLD,
    AskToSave,
    CancelLaunch,
    Decision,
    DumpStacks,
    FinishJob,
    KillWorkers,
    SignalWorkers,
    StartWorkers,
)
from supervisor.core.doing import (
    Alive,
    Beginning,
    Ended,
    Killing,
    Launching,
    Lingering,
    New,
    Running,
    Stopping,
)
from supervisor.core.events import (
    VOLATILE,
    BadUnit,
    CheckpointCommitted,
    CheckpointSetAside,
    CheckpointsFound,
    DeadlineReached,
    DeviceFoundWrong,
    DevicesProbed,
    Event,
    HostsLeaving,
    LaunchCancelled,
    LaunchFailed,
    LossesNotFinite,
    LossSpiked,
    MaintenanceAnnounced,
    NativeStacks,
    Noticed,
    Obstacle,
    PhaseBegun,
    QuarantineCleared,
    RestartRequested,
    RungCompileFailed,
    SaveMeasured,
    SaveRequested,
    SilenceExcused,
    StopRequested,
    StopSource,
    Straggler,
    StragglerFound,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersIdle,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.liveness import Liveness, Silence
from supervisor.core.machine import step
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState
from supervisor.diagnosis.failure import Verdict, WorkerExit
from supervisor.diagnosis.success import Success
from supervisor.protocol.loss_spikes import LossSpike
from supervisor.protocol.messages import Stage, StageMessage, StepMessage
from tests.core.history import RETRY

POLICY = RestartPolicy(
    phases=(
        PhasePolicy(
            "a",
            2,
            1,
            Success(step=10),
            reports_stages=True,
            rungs=(4, 2),
            units=("0", "1", "2", "3"),
            max_total_restarts=3,
            finds_checkpoints=True,
        ),
        PhasePolicy("b", 1, 0, Success(step=10)),
    ),
    preemption_notice=120.0,
)

times = st.floats(0, 1000)
attempts = st.integers(1, 4)
steps = st.one_of(st.none(), st.integers(0, 20))
exits = st.lists(
    st.builds(WorkerExit, st.integers(0, 1), code=st.sampled_from([0, 1])), max_size=2
).map(tuple)
failures = st.builds(
    lambda verdict, charge, hardware, per_rung, certain, signature: replace(
        RETRY,
        verdict=verdict,
        charge=charge,
        hardware=hardware,
        per_rung=per_rung,
        certain=certain,
        signature=signature,
    ),
    st.sampled_from(Verdict),
    st.sampled_from(Charge),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, "E-1", "E-2"]),
)
units = st.lists(st.sampled_from("0123"), unique=True, max_size=4).map(tuple)
bad = st.lists(
    st.builds(BadUnit, st.sampled_from("0123"), st.just("bad"), st.booleans()), max_size=2
).map(tuple)
pids = st.sampled_from([(10,), (10, 11)])
drawn: dict[type, st.SearchStrategy[Event]] = {
    SupervisorStarted: st.builds(SupervisorStarted, times, st.just("job"), st.just(POLICY), steps),
    PhaseBegun: st.builds(PhaseBegun, times, st.integers(0, 1), st.just("dir"), steps),
    WorkersStarted: st.builds(WorkersStarted, times, attempts, pids),
    LaunchFailed: st.builds(LaunchFailed, times, attempts, failures),
    LaunchCancelled: st.builds(LaunchCancelled, times, attempts),
    WorkerReported: st.builds(
        WorkerReported,
        times,
        attempts,
        st.just(0),
        st.one_of(st.builds(StepMessage, st.integers(0, 20)), st.just(StageMessage(Stage.SAVING))),
    ),
    Noticed: st.builds(Noticed, times, st.just("x")),
    MaintenanceAnnounced: st.builds(MaintenanceAnnounced, times, st.just("x")),
    SilenceExcused: st.builds(SilenceExcused, times, st.floats(0, 10), st.just("x")),
    NativeStacks: st.builds(NativeStacks, times, attempts, st.booleans()),
    WorkersIdle: st.builds(
        WorkersIdle,
        times,
        attempts,
        st.floats(0, 1000),
        st.sampled_from([None, Stage.SAVING]),
    ),
    LossesNotFinite: st.builds(
        LossesNotFinite,
        times,
        attempts,
        st.integers(0, 20),
        st.integers(1, 12),
        steps,
        steps,
        steps,
    ),
    DeviceFoundWrong: st.builds(
        DeviceFoundWrong, times, attempts, st.sampled_from("0123"), st.integers(0, 20), st.just("x")
    ),
    LossSpiked: st.builds(
        LossSpiked, times, attempts, st.builds(LossSpike, st.integers(0, 20), times, times, times)
    ),
    StragglerFound: st.builds(
        StragglerFound,
        times,
        attempts,
        st.builds(Straggler, st.integers(0, 3), times, times, times),
    ),
    RestartRequested: st.builds(RestartRequested, times, st.just("ann on h1")),
    SaveRequested: st.builds(SaveRequested, times, st.just("ann on h1")),
    HostsLeaving: st.builds(HostsLeaving, times, attempts, st.just("host h2 is about to go")),
    CheckpointsFound: st.builds(CheckpointsFound, times, st.integers(0, 1), st.just("/out/ckpts")),
    CheckpointSetAside: st.builds(
        CheckpointSetAside,
        times,
        attempts,
        st.integers(0, 20),
        steps,
        st.just("/run/damaged"),
        st.just("it is missing"),
        st.just(("a",)),
    ),
    CheckpointCommitted: st.builds(
        CheckpointCommitted, times, st.integers(0, 1), st.integers(0, 20), st.booleans()
    ),
    SaveMeasured: st.builds(SaveMeasured, times, attempts, st.floats(0, 100)),
    WorkersObserved: st.builds(WorkersObserved, times, attempts, pids, exits),
    WorkersGone: st.builds(
        WorkersGone, times, attempts, st.one_of(st.none(), failures), steps, steps, steps
    ),
    DevicesProbed: st.builds(
        DevicesProbed,
        times,
        attempts,
        units,
        bad,
        st.sampled_from([None, "it hung"]),
        st.sampled_from(
            [
                None,
                Obstacle("the cluster does not answer", "start it again"),
                Obstacle("no host can be used", "install it", lasts=True),
            ]
        ),
    ),
    RungCompileFailed: st.builds(
        RungCompileFailed, times, st.integers(0, 1), st.sampled_from([4, 2]), st.just("x")
    ),
    QuarantineCleared: st.builds(QuarantineCleared, times, units),
    StopRequested: st.builds(
        StopRequested, times, st.sampled_from(StopSource), at_once=st.booleans()
    ),
    DeadlineReached: st.builds(
        DeadlineReached,
        times,
        st.one_of(st.none(), st.builds(Silence, attempts, st.sampled_from(Stage), times)),
    ),
}
"""Every kind of event."""
events = st.one_of(*drawn.values())
histories = st.lists(events, max_size=60).map(
    lambda rest: [SupervisorStarted(0.0, "job", POLICY, None), *rest]
)


@given(histories)
def test_every_event_is_defined_in_every_state_and_the_invariants_hold(
    history: list[Event],
) -> None:
    state = JobState()
    for event in history:
        before = state
        state, decisions = step(state, event, POLICY)
        check_state(before, event, state)
        for decision in decisions:
            check_decision(before, decision, state)


def check_state(before: JobState, event: Event, state: JobState) -> None:
    assert state.job == "job"
    assert state.attempt >= before.attempt
    limits = POLICY.phases[state.phase]
    assert 0 <= state.budget.restarts <= limits.max_num_restarts
    assert 0 <= state.budget.preemptions <= limits.max_num_preemptions
    assert state.budget.total <= (limits.max_total_restarts or state.budget.total)
    if state.phase == before.phase and not takes_the_place_of_a_base_model(before, event):
        assert (state.budget.highest or -1) >= (before.budget.highest or -1)
    if before.status.terminal and not isinstance(event, SupervisorStarted):
        assert state == before
    check_doing(state)
    if isinstance(event, SupervisorStarted) or not isinstance(state.doing, Alive):
        assert state.liveness == Liveness(), "words of a dead group condemn no other"
    is_same = isinstance(state.doing, Alive) and state.attempt == before.attempt
    if isinstance(before.doing, Alive) and not is_same:
        assert isinstance(event, WorkersGone | LaunchFailed), "a group only leaves when it is gone"
        assert event.attempt == before.attempt


def takes_the_place_of_a_base_model(before: JobState, event: Event) -> bool:
    """Whether a lower step may take the place of the highest one, which was the only one."""
    return isinstance(event, CheckpointCommitted) and event.new and before.budget.is_lone


def check_doing(state: JobState) -> None:
    """What the types do not say: how what the job does fits the rest of its state."""
    match state.doing:
        case Beginning():
            assert state.directory is None
        case Launching() | Stopping() | Lingering() | Killing():
            assert state.directory is not None
        case Running(workers=workers):
            assert state.directory is not None
            assert not state.drains
            assert not workers.all_ended
        case New():
            raise AssertionError("a supervisor has started")


def check_decision(before: JobState, decision: Decision, state: JobState) -> None:
    match decision:
        case StartWorkers(attempt):
            assert attempt == before.attempt + 1
            assert state.attempt == attempt
            assert isinstance(state.doing, Launching)
        case (
            DumpStacks(attempt)
            | CancelLaunch(attempt)
            | AskToSave(attempt)
            | SignalWorkers(attempt)
            | KillWorkers(attempt)
        ):
            assert attempt == state.attempt
            assert isinstance(state.doing, Alive)
        case FinishJob(status, code):
            assert (state.status, state.exit_code) == (status, code)
            assert isinstance(state.doing, Ended)


@given(histories)
def test_what_is_volatile_leaves_no_trace_in_what_is_durable_or_done(history: list[Event]) -> None:
    live, replayed = JobState(), JobState()
    for event in history:
        live, decided = step(live, event, POLICY)
        if not isinstance(event, VOLATILE):
            replayed, again = step(replayed.durable(), event, POLICY)
            assert done(again) == done(decided)
        assert replayed.durable() == live.durable()


def done(decisions: tuple[Decision, ...]) -> list[Decision]:
    return [each for each in decisions if not isinstance(each, ONLY_TOLD)]
