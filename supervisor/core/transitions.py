"""The moves that every part of the decision core ends in: start an attempt, wait, end the job."""

from __future__ import annotations

from dataclasses import replace

from supervisor.config.judgement import Remedy
from supervisor.core.decisions import Decision, FinishJob, MakeRoom, StartWorkers, TellStages, Wait
from supervisor.core.doing import (
    BackingOff,
    Drained,
    Ended,
    Failed,
    Launching,
    Probing,
    Waiting,
)
from supervisor.core.events import StopSource
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import RestartPolicy
from supervisor.core.snapshot_use import distrust
from supervisor.core.state import Drain, JobState
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.rules import OF_A_FULL_DISK
from supervisor.diagnosis.rules.wording import for_the_end

StepResult = tuple[JobState, tuple[Decision, ...]]


_RESTS: dict[type, str] = {BackingOff: "backoff", Probing: "probe", Waiting: "capacity"}


def rested(state: JobState, at: float) -> JobState:
    """The recovery has gone on while nothing ran."""
    part = _RESTS.get(type(state.doing))
    return replace(state, recovery=state.recovery.spent(part, at)) if part is not None else state


def start(state: JobState, reason: str, at: float, policy: RestartPolicy) -> StepResult:
    """The next attempt, on the rung where the ladder stands."""
    attempt = state.attempt + 1
    state = replace(
        rested(state, at),
        attempt=attempt,
        doing=Launching(deadline=at + policy.launch_timeout),
    )
    placement, failure = state.ladder.placement, state.last_failure
    assert state.directory is not None
    decision = StartWorkers(
        attempt,
        state.phase,
        reason,
        num_devices=placement.num_devices if placement is not None else None,
        units=placement.units if placement is not None else (),
        directory=state.directory,
        adjustments=state.remediation.adjustments,
        distrust=distrust(failure),
        make_room=_make_room(failure),
    )
    return state, (decision,)


def _make_room(failure: Failure | None) -> MakeRoom | None:
    if failure is None or failure.rule not in OF_A_FULL_DISK:
        return None
    return MakeRoom.ALWAYS if "quota" in failure.root_cause.lower() else MakeRoom.IF_SHORT


def back_off(state: JobState, delay: float, reason: str, at: float) -> StepResult:
    """Nothing for `delay` seconds."""
    failure = state.last_failure
    is_busy = failure is not None and failure.remedy is Remedy.WAIT
    state = replace(state, doing=BackingOff(delay, at + delay, reason))
    return state, (Wait(delay, reason, device_is_busy=is_busy),)


def tell_stages(state: JobState, at: float, step: int | None) -> StepResult:
    """Tell how long the attempt was in which stage since that was told last; `step` is the last
    completed one."""
    stages = state.stages.until(at)
    if stages.mark is None:
        return state, ()
    told = TellStages(state.attempt, stages.stage, step, stages.seconds, stages.untold)
    return replace(state, stages=stages.told()), (told,)


def finish(state: JobState, end: Ended, reason: str) -> StepResult:
    """The end of the job, for this run of the command at least."""
    if isinstance(end, Failed) and (failure := state.last_failure) is not None:
        advice = for_the_end(failure.advice, failure.cause)
        state = replace(state, last_failure=replace(failure, advice=advice))
    return replace(state, doing=end), (FinishJob(end.status, end.exit_code, reason),)


def drained(state: JobState, drain: Drain) -> StepResult:
    """The end, because somebody asked for it."""
    code = ExitCode.STOPPED if drain.source is StopSource.PERSON else ExitCode.DRAINED
    reason = "stopped; run the same command again to resume"
    return finish(state, Drained(code), reason)
