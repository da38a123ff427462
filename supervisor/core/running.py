"""An attempt lives: its workers start, report, and end one by one.

The end of a worker is not yet the end of its work. A shell that dies of SIGTERM, or a launcher that
exits with code 0 on it, leaves a trainer behind that must still save. A command that puts its work
into the background exits with code 0 at once, which is no success. So survivors (live processes
that were started by workers which have ended) get time to end too.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from supervisor.core.decisions import Decision, TellRecovery
from supervisor.core.doing import (
    Alive,
    Asked,
    Hang,
    Killing,
    Launching,
    Lingering,
    Running,
    Stopping,
    WorkerEnded,
    Workers,
    cause_of,
    workers_of,
)
from supervisor.core.ending import ended_well, kill, some_failed, told_ends
from supervisor.core.events import WorkerReported, WorkersObserved, WorkersStarted
from supervisor.core.policy import RestartPolicy
from supervisor.core.recovery import Recovery
from supervisor.core.state import JobState
from supervisor.core.stopping import ask_to_stop
from supervisor.core.transitions import StepResult, signal, tell_stages
from supervisor.diagnosis.failure import WorkerExit
from supervisor.protocol.messages import RestoredMessage, StageMessage, StepMessage

_SIGTERM_CODE = 128 + 15
"""The exit code of a shell whose program died of SIGTERM."""


def workers_started(state: JobState, event: WorkersStarted, policy: RestartPolicy) -> StepResult:
    """Every worker runs: the job is `Running`, or stops at once if it was asked to."""
    if not isinstance(state.doing, Launching) or state.attempt != event.attempt:
        return state, ()
    workers, deadline = Workers(len(event.pids), pids=event.pids), state.doing.deadline
    recovery = state.recovery.started(event.began, event.at, standby=event.standby)
    goodput = state.goodput.trains(event.at)
    rate = state.failure_rate.started(event.at)
    state = replace(state, recovery=recovery, goodput=goodput, failure_rate=rate)
    phase = policy.phases[state.phase]
    if phase.reports_stages:
        limits = phase.limits(tries_again=not state.initialises_again)
        state = replace(state, liveness=state.liveness.started(event.at, limits))
    stages = state.stages.started(event.at, state.liveness.stage)
    state = replace(state, stages=stages)
    if state.drains:
        return ask_to_stop(state, Stopping(workers, Asked(), deadline), event.at, policy)
    ladder = state.ladder.begin_to_look(phase, policy, event.at)
    return replace(state, ladder=ladder, doing=Running(workers)), ()


def worker_reported(state: JobState, event: WorkerReported, policy: RestartPolicy) -> StepResult:
    """A worker reported: move the hang watchdog, the recovery and the stage times on."""
    if not isinstance(state.doing, Alive) or state.attempt != event.attempt:
        return state, ()
    limits = policy.phases[state.phase].limits(tries_again=not state.initialises_again)
    liveness = state.liveness.heard(event.message, event.at, limits)
    recovery, decisions = _recovering(state, event, policy)
    goodput = state.goodput.trains(event.at) if decisions else state.goodput
    stages = state.stages
    if isinstance(event.message, RestoredMessage) and event.message.step is None:
        stages = stages.found_nothing(event.at)
    is_told, stages = stages.entered(liveness.stage, event.at)
    state = replace(state, liveness=liveness, recovery=recovery, goodput=goodput, stages=stages)
    state, told = tell_stages(state, event.at, liveness.step) if is_told else (state, ())
    return state, (*decisions, *told)


def _recovering(
    state: JobState, event: WorkerReported, policy: RestartPolicy
) -> tuple[Recovery, tuple[Decision, ...]]:
    """Returns the recovery after a report; a completed step ends it."""
    recovery, doing = state.recovery, state.liveness
    if recovery.mark is None or _ends_already(state, policy):
        return recovery, ()
    match event.message:
        case StageMessage():
            return recovery.left(doing.stage, event.at, inferred=doing.inferred), ()
        case RestoredMessage(step):
            return replace(recovery, restored=step or 0), ()
        case StepMessage():
            step = event.message.earliest
            left, every = recovery.left(doing.stage, event.at), event.message.every
            missed = left.missed(step, state.newest)
            whole = left.resumed_before(step, state.newest, every)
            told = TellRecovery(event.attempt, step, whole.parts, whole.lost, missed)
            return Recovery(), (told,)
        case _:
            return recovery, ()


def _ends_already(state: JobState, policy: RestartPolicy) -> bool:
    """Whether the attempt ends, so that its reports are no new start: other ranks report until
    they are killed, survivors of a drain work on, and a last line of output may be read late."""
    assert isinstance(state.doing, Alive)
    if isinstance(state.doing, Killing) or isinstance(cause_of(state.doing), WorkerEnded | Hang):
        return True
    workers = workers_of(state.doing)
    return workers is not None and _is_dying(workers, state, policy)


def workers_observed(state: JobState, event: WorkersObserved, policy: RestartPolicy) -> StepResult:
    """Which workers live, and which have ended: the first one that failed ends them all."""
    if state.attempt != event.attempt:
        return state, ()
    decisions: tuple[Decision, ...] = ()
    if isinstance(
        state.doing, Launching
    ):  # the answer to StartWorkers was lost: this one replaces it
        started = WorkersStarted(event.at, event.attempt, event.pids)
        state, decisions = workers_started(state, started, policy)
    match state.doing:
        case Killing(seen=seen) as killing:
            return replace(state, doing=replace(killing, seen=max(seen, len(event.exits)))), ()
        case Lingering(workers=workers) as group:
            group = replace(group, workers=replace(workers, survivors=event.survivors))
            if event.survivors:
                return replace(state, doing=group), ()
            return kill(state, group, event.at, told_ends(workers), policy)
        case Running() | Stopping() as group:
            state, more = _ends_observed(state, group, event, policy)
            is_over = isinstance(
                state.doing, Killing
            )  # then no worker is left that could be asked to stop
            return state, (more if is_over else (*decisions, *more))
        case _:
            return state, ()


def _ends_observed(
    state: JobState, group: Running | Stopping, event: WorkersObserved, policy: RestartPolicy
) -> StepResult:
    workers, before = replace(group.workers, survivors=event.survivors), group.workers.exits
    group = replace(group, workers=workers)
    if len(event.exits) <= len(before):
        return replace(state, doing=group), ()
    earlier, workers = workers, replace(workers, exits=event.exits)
    group = replace(group, workers=workers)
    is_dying = _is_dying(workers, state, policy) and not _is_dying(earlier, state, policy)
    if is_dying and not isinstance(cause_of(group), Hang):
        state = replace(state, recovery=state.recovery.died(event.at))
    if workers.all_ended:
        return _survive(state, group, event.at, policy)
    if not state.drains and some_failed(workers.exits, state, policy):
        # The other ranks would hang in a collective. They get time for their failure records only.
        cause = cause_of(group) or WorkerEnded()
        group = Stopping(workers, cause, deadline=event.at + policy.farewell)
    return replace(state, doing=group), ()


def _is_dying(workers: Workers, state: JobState, policy: RestartPolicy) -> bool:
    """Whether the attempt ends with what is known of its workers' exits."""
    return workers.all_ended or some_failed(workers.exits, state, policy)


def _survive(
    state: JobState, group: Running | Stopping, at: float, policy: RestartPolicy
) -> StepResult:
    """Every worker has ended: give the survivors time, or kill the group if there are none."""
    workers = group.workers
    if not workers.survivors:
        return kill(state, group, at, told_ends(workers), policy)
    if isinstance(group, Stopping) and state.ends_group:
        return replace(state, doing=Lingering(workers, group.cause, group.deadline)), ()
    if ended_well(state, workers, policy):
        waits = Lingering(workers, WorkerEnded(), at + policy.survivors_wait)
        return replace(state, doing=waits), ()
    code = policy.phases[state.phase].success.exit_code
    if all(_by_sigterm(ended) or ended.code == code for ended in workers.exits):
        who = "its first process" if len(workers.exits) == 1 else "its workers"
        reason = f"{who} ended on a SIGTERM that the supervisor did not send"
        earlier = group.deadline if isinstance(group, Stopping) else inf
        lingering = Lingering(workers, WorkerEnded(), earlier)
        return signal(state, lingering, reason, at, policy, WorkerEnded())
    return kill(state, group, at, told_ends(workers), policy)


def _by_sigterm(ended: WorkerExit) -> bool:
    return ended.told_to_stop or ended.signal == "SIGTERM" or ended.code == _SIGTERM_CODE
