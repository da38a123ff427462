"""The decision core: one function from state and event to the next state and the decisions.

An attempt lives in one arc:

    StartWorkers -> WorkersStarted -> (a worker ends, or somebody wants a stop) -> KillWorkers
    -> WorkersGone -> (DevicesProbed ->) the next attempt, the next phase, or the end

Every way out of RUNNING leads through `KillWorkers`. Its answer `WorkersGone` says that no process
of the attempt is left, and why it ended. Another attempt can start only after that, so two groups
never live at once. A supervisor that finds an unfinished attempt in its journal does the same.

This file has the table of handlers, and those for deadlines. The others are in `resuming` (a
supervisor starts), `running` (an attempt lives), `stopping` (it is asked to stop, hangs, or trains
no more), `regrowing` (it makes way for a larger rung), `leaving` (hosts of it are about to go),
`restarting` (a person wants a fresh one), `ending` (its end, and what follows), `capacity_check`
(the units of the next one), `phases` (from phase to phase) and `transitions` (shared by all).
docs/reference/states.md has every transition; CONTRIBUTING.md traces one restart.

Events that do not fit the state (late, duplicate, of another attempt or phase) change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from supervisor.core.doing import (
    Alive,
    BackingOff,
    Beginning,
    Ended,
    Hang,
    Killing,
    Launching,
    Lingering,
    Probing,
    Running,
    Stopping,
    Waiting,
    Workers,
)
from supervisor.core.ending import ended_well, kill, launch_failed, probed, told_ends, workers_gone
from supervisor.core.events import (
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
    PhaseBegun,
    QuarantineCleared,
    RestartRequested,
    RungCompileFailed,
    SaveMeasured,
    SaveRequested,
    SilenceExcused,
    StopRequested,
    StragglerFound,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersIdle,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.leaving import hosts_leaving
from supervisor.core.phases import begin, phase_begun
from supervisor.core.policy import RestartPolicy
from supervisor.core.regrowing import checkpoint_committed, look_for_more, spares_probed
from supervisor.core.restarting import restart_requested, save_requested
from supervisor.core.resuming import supervisor_started
from supervisor.core.running import worker_reported, workers_observed, workers_started
from supervisor.core.state import JobState
from supervisor.core.stopping import (
    ask_to_stop,
    hung,
    launch_cancelled,
    losses_not_finite,
    native_stacks,
    save_measured,
    stop_requested,
    workers_idle,
)
from supervisor.core.transitions import StepResult, go_on, probe, signal

_SPIKES_REMEMBERED = 8
"""Spikes of the loss that are remembered: the newest."""


def step(state: JobState, event: Event, policy: RestartPolicy) -> StepResult:
    """Returns the state after `event`, and the decisions that follow from it."""
    if isinstance(state.doing, Ended) and not isinstance(event, SupervisorStarted):
        return state, ()
    return _HANDLERS[type(event)](state, event, policy)


def _noticed(state: JobState, event: Noticed, policy: RestartPolicy) -> StepResult:
    return state, ()


def _maintenance_announced(
    state: JobState, event: MaintenanceAnnounced, policy: RestartPolicy
) -> StepResult:
    return replace(state, announced=event.text), ()


def _silence_excused(state: JobState, event: SilenceExcused, policy: RestartPolicy) -> StepResult:
    return replace(state, liveness=state.liveness.excused(event.seconds)), ()


def _checkpoints_found(
    state: JobState, event: CheckpointsFound, policy: RestartPolicy
) -> StepResult:
    """The directory changes; what was counted stays, unless it is of a later epoch, in which the
    program counts anew."""
    if event.phase != state.phase or not policy.phases[state.phase].finds_checkpoints:
        return state, ()
    budget = state.budget.saving_in(
        event.directory, state.checkpoints, state.attempt, is_resumed=event.is_resumed
    )
    state = replace(state, budget=budget)
    return replace(state, checkpoints=event.directory, checkpoint_kinds=event.kinds), ()


def _checkpoint_set_aside(
    state: JobState, event: CheckpointSetAside, policy: RestartPolicy
) -> StepResult:
    """A committed step is gone; what was counted stays: `budget.highest` never falls."""
    if event.attempt != state.attempt or not isinstance(state.doing, Alive):
        return state, ()
    return replace(state, newest=event.newest, num_damaged=state.num_damaged + 1), ()


def _straggler_found(state: JobState, event: StragglerFound, policy: RestartPolicy) -> StepResult:
    """Nothing is decided: people are told, and `supervise status` shows it."""
    if event.attempt != state.attempt or not isinstance(state.doing, Alive):
        return state, ()
    others = (each for each in state.stragglers if each.rank != event.straggler.rank)
    return replace(state, stragglers=(*others, event.straggler)), ()


def _device_found_wrong(
    state: JobState, event: DeviceFoundWrong, policy: RestartPolicy
) -> StepResult:
    """Keep the unit from the next attempt. The workers end themselves, with an error."""
    phase = policy.phases[state.phase]
    if event.attempt != state.attempt or not isinstance(state.doing, Alive):
        return state, ()
    if event.unit not in state.ladder.units(phase) or event.unit in state.quarantine.units:
        return state, ()
    until = event.at + policy.quarantine_for
    return replace(state, quarantine=state.quarantine.add({event.unit: event.reason}, until)), ()


def _loss_spiked(state: JobState, event: LossSpiked, policy: RestartPolicy) -> StepResult:
    """Nothing is decided: people are told, and `supervise status` shows it."""
    if event.attempt != state.attempt or not isinstance(state.doing, Alive):
        return state, ()
    earlier = [each for each in state.loss_spikes if each.step < event.spike.step]
    return replace(state, loss_spikes=(*earlier, event.spike)[-_SPIKES_REMEMBERED:]), ()


def _rung_compile_failed(
    state: JobState, event: RungCompileFailed, policy: RestartPolicy
) -> StepResult:
    if event.phase != state.phase or event.num_devices not in policy.phases[state.phase].rungs[1:]:
        return state, ()
    return replace(state, ladder=state.ladder.strike(event.num_devices, event.reason)), ()


def _quarantine_cleared(
    state: JobState, event: QuarantineCleared, policy: RestartPolicy
) -> StepResult:
    return replace(state, quarantine=state.quarantine.cleared(event.units)), ()


def _devices_probed(state: JobState, event: DevicesProbed, policy: RestartPolicy) -> StepResult:
    if event.number != state.looks:
        return state, ()
    match state.doing:
        case Launching() | Running() | Stopping() | Lingering():
            return spares_probed(state, event, policy)
        case Probing() as probing:
            return probed(state, probing, event, policy)
        case _:
            return state, ()


# --- a deadline has come -----------------------------------------------------------------------


def _deadline_reached(state: JobState, event: DeadlineReached, policy: RestartPolicy) -> StepResult:
    if isinstance(state.doing, Running):
        return _while_it_runs(state, state.doing, event, policy)
    if event.silence is not None or state.due is None or event.at < state.due:
        return state, ()
    return _overdue(state, event.at, policy)


def _overdue(state: JobState, at: float, policy: RestartPolicy) -> StepResult:
    """The deadline of the present `doing` has come."""
    match state.doing:
        case Beginning():
            return begin(state, "its directory is not there yet", at, policy)
        case BackingOff(reason=reason):
            return go_on(state, reason, at, policy)
        case Probing(reason, _, since, suspicion, missing):
            return probe(
                state,
                reason,
                at,
                policy,
                short_since=since,
                suspicion=suspicion,
                missing=missing,
            )
        case Waiting(reason, _, since, missing):
            return probe(state, reason, at, policy, short_since=since, missing=missing)
        case (
            Stopping(cause=Hang(asked=False) as hang) | Lingering(cause=Hang(asked=False) as hang)
        ) as group:
            return signal(state, group, "it hangs", at, policy, hang)
        case Launching() | Stopping() | Lingering() | Killing() as group:
            return kill(state, group, at, _why_killed(state, group, policy), policy)
        case _:
            return state, ()


def _while_it_runs(
    state: JobState, group: Running, event: DeadlineReached, policy: RestartPolicy
) -> StepResult:
    at, silence = event.at, event.silence
    if silence is not None:
        is_current = state.attempt == silence.attempt
        return hung(state, group, silence, at, policy) if is_current else (state, ())
    if state.drain is not None and state.drain.begins is not None and at >= state.drain.begins:
        return ask_to_stop(state, group, at, policy)
    if state.ladder.look_at is not None and at >= state.ladder.look_at:
        return look_for_more(state, at, policy)
    return state, ()


def _why_killed(
    state: JobState, group: Launching | Stopping | Lingering | Killing, policy: RestartPolicy
) -> str:
    """Returns why a group whose deadline has come is killed."""
    if isinstance(group, Killing):
        return "the processes of the attempt are not confirmed gone yet"
    if state.ends_group:
        return "the grace period is over"
    match group:
        case Launching():
            return "nothing tells that its workers were started"
        case Lingering(workers=workers):
            return _why_lingering_ends(state, workers, policy)
        case Stopping(workers=workers):
            return told_ends(workers)


def _why_lingering_ends(state: JobState, workers: Workers, policy: RestartPolicy) -> str:
    """Returns why survivors whose deadline has come are killed."""
    if ended_well(state, workers, policy):
        return f"all workers had ended well {policy.survivors_wait:g} s before"
    return "the grace period is over"


_HANDLERS: dict[type, Callable[[JobState, Any, RestartPolicy], StepResult]] = {
    SupervisorStarted: supervisor_started,
    PhaseBegun: phase_begun,
    WorkersStarted: workers_started,
    LaunchFailed: launch_failed,
    LaunchCancelled: launch_cancelled,
    WorkerReported: worker_reported,
    Noticed: _noticed,
    MaintenanceAnnounced: _maintenance_announced,
    SilenceExcused: _silence_excused,
    WorkersIdle: workers_idle,
    NativeStacks: native_stacks,
    LossesNotFinite: losses_not_finite,
    CheckpointCommitted: checkpoint_committed,
    CheckpointsFound: _checkpoints_found,
    CheckpointSetAside: _checkpoint_set_aside,
    SaveMeasured: save_measured,
    WorkersObserved: workers_observed,
    WorkersGone: workers_gone,
    DevicesProbed: _devices_probed,
    RungCompileFailed: _rung_compile_failed,
    QuarantineCleared: _quarantine_cleared,
    StopRequested: stop_requested,
    RestartRequested: restart_requested,
    SaveRequested: save_requested,
    HostsLeaving: hosts_leaving,
    StragglerFound: _straggler_found,
    DeviceFoundWrong: _device_found_wrong,
    LossSpiked: _loss_spiked,
    DeadlineReached: _deadline_reached,
}
