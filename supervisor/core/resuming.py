"""A supervisor starts: the job begins, goes on where it was left, or stays ended."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.doing import (
    Alive,
    BackingOff,
    Killing,
    Launching,
    Lingering,
    Probing,
    Running,
    Stopping,
    Succeeded,
    Waiting,
    workers_of,
)
from supervisor.core.ending import kill, some_failed
from supervisor.core.events import SupervisorStarted
from supervisor.core.exit_codes import ExitCode
from supervisor.core.guesses import Guesses
from supervisor.core.ladder import Ladder
from supervisor.core.livelock import Goodput, Livelock
from supervisor.core.liveness import Liveness
from supervisor.core.phases import begin, begin_anew, next_phase
from supervisor.core.policy import RestartPolicy
from supervisor.core.quarantine import Quarantine
from supervisor.core.recovery import Recovery
from supervisor.core.stage_times import StageTimes
from supervisor.core.state import JobState
from supervisor.core.transitions import StepResult, back_off, finish, probe


def supervisor_started(
    state: JobState, event: SupervisorStarted, policy: RestartPolicy
) -> StepResult:
    """A supervisor starts: go on from what the job did last."""
    drained = state.drain is not None
    ended_for_good = state.exit_code is not None and ExitCode(state.exit_code).for_good
    begins_anew = state.begins_anew(once=event.once)
    state = replace(
        state,
        job=event.job,
        attempt=max(state.attempt, event.attempt),
        remediation=state.remediation.run_again(),
        ladder=_ladder_again(state, policy),
        quarantine=_quarantine_again(state, event, policy),
        checkpoints=_checkpoints_again(state, policy),
        epoch=event.epoch,
        drain=None,
        announced="",
        liveness=Liveness(),
        stages=StageTimes(),
        failure_rate=state.failure_rate.on_another_clock(),
    )
    if begins_anew:
        return begin_anew(state, event.at, policy)
    if isinstance(state.doing, Succeeded):
        return _reopened(state, state.doing, event.at, policy)
    if state.attempt > 0:
        state = replace(state, recovery=Recovery(event.at, reached=state.recovery.reached))
    state = replace(state.found(event.committed, event.at), goodput=Goodput(event.at))
    if ended_for_good:
        state = replace(
            state,
            budget=state.budget.fresh(),
            livelock=Livelock(),
            remediation=state.remediation.fresh(),
            guesses=Guesses(),
            ladder=replace(state.ladder, struck=()),
            directory=None,
            last_failure=None,
        )
    match state.doing:
        case Launching() | Running() | Stopping() | Lingering() | Killing() as group:
            return _recovered(state, group, drained or event.changed, event.at, policy)
        case Probing(reason=reason, suspicion=suspicion):
            return probe(state, reason, event.at, policy, suspicion=suspicion)
        case Waiting(reason=reason):
            return probe(state, reason, event.at, policy)
        case BackingOff(delay=delay, reason=reason):
            return back_off(state, delay, reason, event.at)
        case _:
            reason = "the job starts" if state.attempt == 0 else "the job goes on"
            return begin(state, reason, event.at, policy)


def _checkpoints_again(state: JobState, policy: RestartPolicy) -> str | None:
    """Returns the directory that was found, unless the config names one by now."""
    is_there = state.phase < len(policy.phases)
    return state.checkpoints if is_there and policy.phases[state.phase].finds_checkpoints else None


def _ladder_again(state: JobState, policy: RestartPolicy) -> Ladder:
    """Returns the ladder as it was, if the config still has that rung and those units. Its times
    are dropped: they were of another clock."""
    if state.phase >= len(policy.phases):
        return Ladder()
    phase = policy.phases[state.phase]
    placement, was_short = state.ladder.placement, state.ladder.doubtful
    fits = placement is not None and (
        placement.num_devices in phase.rungs
        and (phase.num_hosts > 0 or set(placement.units) <= set(phase.units))
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


def _reopened(state: JobState, end: Succeeded, at: float, policy: RestartPolicy) -> StepResult:
    """A job that succeeded is run again: it ends at once unless the config asks for more."""
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
    state: JobState, group: Alive, abandoned: bool, at: float, policy: RestartPolicy
) -> StepResult:
    """Kill the group that the last supervisor left; its end counts only if it ended by itself, and
    is not `abandoned`: it was drained, or ran something else than the config asks for by now."""
    workers = workers_of(group)
    lingered = isinstance(group.was if isinstance(group, Killing) else group, Lingering)
    ended = workers is not None and (
        (workers.all_ended and not lingered) or some_failed(workers.exits, state, policy)
    )
    reason = "the supervisor of this attempt ended before it did"
    return kill(state, group, at, reason, policy, abandoned=abandoned or not ended)
