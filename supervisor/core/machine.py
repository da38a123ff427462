"""The decision core: one function from state and event to the next state and what is to be done.

An attempt lives in one arc:

    StartWorkers -> WorkersStarted -> (a worker ends, or somebody wants a stop) -> KillWorkers
    -> WorkersGone -> (DevicesProbed ->) the next attempt, the next phase, or the end

Every way out of RUNNING leads through `KillWorkers`, whose answer `WorkersGone` says that no
process of the attempt is left and what it died of. Only after that can another attempt start: so
two groups never live at once. A supervisor that finds an unfinished attempt in its journal goes the
same way. This file holds how a job starts and an attempt lives; `ending` what an attempt's end
leads to, `placing` what the next one runs on, `stopping` how a live one is stopped, `phases` the
way from phase to phase, and `moves` what they all end in.

Events that do not fit the state (late, duplicate, of another attempt or phase) change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from supervisor.core.decisions import Decision, TellRecovery
from supervisor.core.doing import (
    Alive,
    Asked,
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
    Succeeded,
    Waiting,
    WorkerEnded,
    Workers,
    cause_of,
    workers_of,
)
from supervisor.core.ending import devices_probed, kill, launch_failed, told_ends, workers_gone
from supervisor.core.events import (
    CheckpointCommitted,
    DeadlineReached,
    DevicesProbed,
    Event,
    LaunchFailed,
    MaintenanceAnnounced,
    Noticed,
    PhaseBegun,
    QuarantineCleared,
    RungCompileFailed,
    SaveMeasured,
    SilenceExcused,
    StopRequested,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.guesses import Guesses
from supervisor.core.ladder import Ladder
from supervisor.core.livelock import Goodput, Livelock
from supervisor.core.liveness import Liveness
from supervisor.core.moves import Outcome, back_off, finish
from supervisor.core.phases import begin, begin_anew, next_phase, phase_begun
from supervisor.core.placing import go_on, look_for_more, looks_for_more, makes_way, probe
from supervisor.core.policy import RestartPolicy
from supervisor.core.quarantine import Quarantine
from supervisor.core.recovery import Recovery
from supervisor.core.state import JobState
from supervisor.core.stopping import (
    ask_to_stop,
    hung,
    make_way,
    save_measured,
    signal,
    stop_requested,
)
from supervisor.core.surviving import overdue, survive
from supervisor.diagnosis.failure import WorkerExit
from supervisor.protocol.messages import RestoredMessage, StageMessage, StepMessage


def step(state: JobState, event: Event, policy: RestartPolicy) -> Outcome:
    """The state after `event`, and the decisions that follow from it."""
    if isinstance(state.doing, Ended) and not isinstance(event, SupervisorStarted):
        return state, ()
    return _HANDLERS[type(event)](state, event, policy)


# --- a supervisor starts -----------------------------------------------------------------------


def _supervisor_started(
    state: JobState, event: SupervisorStarted, policy: RestartPolicy
) -> Outcome:
    drained = state.drain is not None
    ended_for_good = state.exit_code is not None and ExitCode(state.exit_code).for_good
    begins_anew = state.begins_anew(once=event.once)
    state = replace(
        state,
        job=event.job,
        tactics=state.tactics.run_again(),
        ladder=_ladder_again(state, policy),
        quarantine=_quarantine_again(state, event, policy),
        epoch=event.epoch,
        drain=None,
        announced="",
        liveness=Liveness(),
    )
    if begins_anew:
        return begin_anew(state, event.at, policy)
    if isinstance(state.doing, Succeeded):
        return _reopened(state, state.doing, event.at, policy)
    if state.attempt > 0:
        state = replace(state, recovery=Recovery(event.at, reached=state.recovery.reached))
    state = replace(state.committed(event.committed, event.at), goodput=Goodput(event.at))
    if ended_for_good:
        state = replace(
            state,
            budget=state.budget.fresh(),
            livelock=Livelock(),
            tactics=state.tactics.fresh(),
            guesses=Guesses(),
            ladder=replace(state.ladder, struck=()),
            directory=None,
            last_failure=None,
        )
    match state.doing:
        case Launching() | Running() | Stopping() | Lingering() | Killing() as group:
            return _recovered(state, group, drained, event.at, policy)
        case Probing(reason=reason, suspicion=suspicion):
            return probe(state, reason, event.at, policy, suspicion=suspicion)
        case Waiting(reason=reason):
            return probe(state, reason, event.at, policy)
        case BackingOff(delay=delay, reason=reason):
            return back_off(state, delay, reason, event.at)
        case _:
            reason = "the job starts" if state.attempt == 0 else "the job goes on"
            return begin(state, reason, event.at, policy)


def _ladder_again(state: JobState, policy: RestartPolicy) -> Ladder:
    """Where the job stood on its ladder, if that ladder still has such a rung. Its times were those
    of another clock."""
    if state.phase >= len(policy.phases):
        return Ladder()
    phase = policy.phases[state.phase]
    placement, was_short = state.ladder.placement, state.ladder.doubtful
    fits = placement is not None and (
        placement.num_devices in phase.rungs and set(placement.units) <= set(phase.units)
    )
    return replace(
        state.ladder,
        placement=placement if fits else None,
        doubtful=was_short or (placement is not None and not fits),
        larger_since=None,
        look_at=None,
        grown_at=None,
    )


def _quarantine_again(
    state: JobState, event: SupervisorStarted, policy: RestartPolicy
) -> Quarantine:
    shift = state.epoch - event.epoch
    known = state.quarantine.on_another_clock(shift, event.at, policy.quarantine_for)
    return known.expired(event.at)


def _reopened(state: JobState, end: Succeeded, at: float, policy: RestartPolicy) -> Outcome:
    """A job that succeeded is run again: over, unless there is more to do than there was."""
    target = policy.phases[state.phase].success.step
    if end.reached is not None and target is not None and target > end.reached:
        fresh = state.budget.fresh()
        state = replace(state, budget=fresh, guesses=Guesses(), livelock=Livelock(), directory=None)
        reason = f"the target grew from step {end.reached} to {target}"
        return begin(state, reason, at, policy)
    if state.phase + 1 < len(policy.phases):
        return next_phase(state, "a phase was added", at, policy)
    return finish(state, end, "the job has succeeded already: nothing to do")


def _recovered(
    state: JobState, group: Alive, drained: bool, at: float, policy: RestartPolicy
) -> Outcome:
    """The last supervisor left a group in flight: charged only if it had ended by itself first."""
    workers = workers_of(group)
    lingered = isinstance(group.was if isinstance(group, Killing) else group, Lingering)
    ended = workers is not None and (
        (workers.all_ended and not lingered) or _some_failed(workers.exits, state, policy)
    )
    reason = "the supervisor of this attempt ended before it did"
    return kill(state, group, at, reason, policy, abandoned=drained or not ended)


# --- the attempt lives -------------------------------------------------------------------------


def _workers_started(state: JobState, event: WorkersStarted, policy: RestartPolicy) -> Outcome:
    if not isinstance(state.doing, Launching) or state.attempt != event.attempt:
        return state, ()
    workers, deadline = Workers(len(event.pids)), state.doing.deadline
    recovery = state.recovery.started(event.began, event.at, standby=event.standby)
    goodput = state.goodput.trains(event.at)
    state = replace(state, recovery=recovery, goodput=goodput)
    phase = policy.phases[state.phase]
    if phase.reports_stages:
        limits = phase.limits(tries_again=not state.initialises_again)
        state = replace(state, liveness=state.liveness.started(event.at, limits))
    if state.drains:
        return ask_to_stop(state, Stopping(workers, Asked(), deadline), event.at, policy)
    if looks_for_more(state, policy):
        look_at = event.at + policy.regrow_interval
        state = replace(state, ladder=replace(state.ladder, look_at=look_at))
    return replace(state, doing=Running(workers)), ()


def _worker_reported(state: JobState, event: WorkerReported, policy: RestartPolicy) -> Outcome:
    if not _is_current(state, event.attempt):
        return state, ()
    limits = policy.phases[state.phase].limits(tries_again=not state.initialises_again)
    liveness = state.liveness.heard(event.message, event.at, limits)
    recovery, decisions = _recovering(state, event)
    goodput = state.goodput.trains(event.at) if decisions else state.goodput
    return replace(state, liveness=liveness, recovery=recovery, goodput=goodput), decisions


def _recovering(state: JobState, event: WorkerReported) -> tuple[Recovery, tuple[Decision, ...]]:
    """How far the recovery has got: a completed step ends it."""
    recovery, doing = state.recovery, state.liveness
    if recovery.mark is None:
        return recovery, ()
    match event.message:
        case StageMessage():
            return recovery.left(doing.stage, event.at, inferred=doing.inferred), ()
        case RestoredMessage(step):
            return replace(recovery, restored=step or 0), ()
        case StepMessage():
            whole, step = recovery.left(doing.stage, event.at), event.message.earliest
            return Recovery(), (TellRecovery(event.attempt, step, whole.parts, whole.lost),)
        case _:
            return recovery, ()


def _noticed(state: JobState, event: Noticed, policy: RestartPolicy) -> Outcome:
    return state, ()


def _maintenance_announced(
    state: JobState, event: MaintenanceAnnounced, policy: RestartPolicy
) -> Outcome:
    return replace(state, announced=event.text), ()


def _silence_excused(state: JobState, event: SilenceExcused, policy: RestartPolicy) -> Outcome:
    return replace(state, liveness=state.liveness.excused(event.seconds)), ()


def _checkpoint_committed(
    state: JobState, event: CheckpointCommitted, policy: RestartPolicy
) -> Outcome:
    if event.phase != state.phase:
        return state, ()
    state = state.committed(event.step, event.at)
    is_undisturbed = isinstance(state.doing, Running) and state.drain is None
    if isinstance(state.doing, Running) and is_undisturbed and makes_way(state, event.at, policy):
        return make_way(state, state.doing, event.at, policy)
    return state, ()


def _rung_compile_failed(
    state: JobState, event: RungCompileFailed, policy: RestartPolicy
) -> Outcome:
    if event.phase != state.phase or event.num_devices not in policy.phases[state.phase].rungs[1:]:
        return state, ()
    return replace(state, ladder=state.ladder.strike(event.num_devices, event.reason)), ()


def _quarantine_cleared(
    state: JobState, event: QuarantineCleared, policy: RestartPolicy
) -> Outcome:
    return replace(state, quarantine=state.quarantine.cleared(event.units)), ()


def _is_current(state: JobState, attempt: int) -> bool:
    return isinstance(state.doing, Alive) and state.attempt == attempt


def _workers_observed(state: JobState, event: WorkersObserved, policy: RestartPolicy) -> Outcome:
    if state.attempt != event.attempt:
        return state, ()
    decisions: tuple[Decision, ...] = ()
    if isinstance(state.doing, Launching):  # the answer to StartWorkers was lost: this is as good
        started = WorkersStarted(event.at, event.attempt, event.pids)
        state, decisions = _workers_started(state, started, policy)
    match state.doing:
        case Killing(seen=seen) as killing:
            return replace(state, doing=replace(killing, seen=max(seen, len(event.exits)))), ()
        case Lingering(workers=workers) as group:
            group = replace(group, workers=replace(workers, survivors=event.survivors))
            if event.survivors:
                return replace(state, doing=group), ()
            return kill(state, group, event.at, told_ends(workers.exits), policy)
        case Running() | Stopping() as group:
            state, more = _ends_observed(state, group, event, policy)
            is_over = isinstance(state.doing, Killing)  # then nobody is left to be asked to stop
            return state, (more if is_over else (*decisions, *more))
        case _:
            return state, ()


def _ends_observed(
    state: JobState, group: Running | Stopping, event: WorkersObserved, policy: RestartPolicy
) -> Outcome:
    workers, before = replace(group.workers, survivors=event.survivors), group.workers.exits
    group = replace(group, workers=workers)
    if len(event.exits) <= len(before):
        return replace(state, doing=group), ()
    if not before and not isinstance(cause_of(group), Hang):
        state = replace(state, recovery=state.recovery.died(event.at))
    workers = replace(workers, exits=event.exits)
    group = replace(group, workers=workers)
    if workers.all_ended:
        return survive(state, group, event.at, policy)
    if not state.drains and _some_failed(workers.exits, state, policy):
        # One for all: the others would hang in a collective. They get the time to say farewell.
        cause = cause_of(group) or WorkerEnded()
        group = Stopping(workers, cause, deadline=event.at + policy.farewell)
    return replace(state, doing=group), ()


def _some_failed(exits: tuple[WorkerExit, ...], state: JobState, policy: RestartPolicy) -> bool:
    success = policy.phases[state.phase].success
    return any(ended.code != success.exit_code for ended in exits)


# --- a deadline has come -----------------------------------------------------------------------


def _deadline_reached(state: JobState, event: DeadlineReached, policy: RestartPolicy) -> Outcome:
    if isinstance(state.doing, Running):
        return _while_it_runs(state, state.doing, event, policy)
    if event.silence is not None or state.due is None or event.at < state.due:
        return state, ()
    return _overdue(state, event.at, policy)


def _overdue(state: JobState, at: float, policy: RestartPolicy) -> Outcome:
    """The deadline of what the job does has come."""
    match state.doing:
        case Beginning():
            return begin(state, "its directory is not there yet", at, policy)
        case BackingOff(reason=reason):
            return go_on(state, reason, at, policy)
        case Probing(reason=reason, short_since=since, suspicion=suspicion):
            return probe(state, reason, at, policy, short_since=since, suspicion=suspicion)
        case Waiting(reason=reason, short_since=since):
            return probe(state, reason, at, policy, short_since=since)
        case Stopping(cause=Hang(asked=False) as hang) as group:
            return signal(state, group, "it hangs", at, policy, hang)
        case Launching() | Stopping() | Lingering() | Killing() as group:
            return kill(state, group, at, _why_killed(state, group, policy), policy)
        case _:
            return state, ()


def _while_it_runs(
    state: JobState, group: Running, event: DeadlineReached, policy: RestartPolicy
) -> Outcome:
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
    """Why a group whose time is over is killed."""
    if isinstance(group, Killing):
        return "its processes are not confirmed gone yet"
    if state.ends_group:
        return "the grace period is over"
    match group:
        case Launching():
            return "nothing tells that its workers were started"
        case Lingering(workers=workers):
            return overdue(state, workers, policy)
        case Stopping(workers=workers):
            return told_ends(workers.exits)


_HANDLERS: dict[type, Callable[[JobState, Any, RestartPolicy], Outcome]] = {
    SupervisorStarted: _supervisor_started,
    PhaseBegun: phase_begun,
    WorkersStarted: _workers_started,
    LaunchFailed: launch_failed,
    WorkerReported: _worker_reported,
    Noticed: _noticed,
    MaintenanceAnnounced: _maintenance_announced,
    SilenceExcused: _silence_excused,
    CheckpointCommitted: _checkpoint_committed,
    SaveMeasured: save_measured,
    WorkersObserved: _workers_observed,
    WorkersGone: workers_gone,
    DevicesProbed: devices_probed,
    RungCompileFailed: _rung_compile_failed,
    QuarantineCleared: _quarantine_cleared,
    StopRequested: stop_requested,
    DeadlineReached: _deadline_reached,
}
