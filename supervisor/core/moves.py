"""The moves that every part of the decision core ends in: start an attempt, wait, end the job."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.decisions import Decision, FinishJob, StartWorkers, Wait
from supervisor.core.events import StopSource
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import Backoff, Drain, Group, JobState, Status
from supervisor.diagnosis.rules.phrases import for_the_end

Outcome = tuple[JobState, tuple[Decision, ...]]


_RESTS = {Status.BACKOFF: "backoff", Status.PROBING: "probe", Status.WAITING: "capacity"}


def rested(state: JobState, at: float) -> JobState:
    """The recovery has gone on while nothing ran."""
    part = _RESTS.get(state.status)
    return replace(state, recovery=state.recovery.spent(part, at)) if part is not None else state


def start(state: JobState, reason: str, at: float, policy: RestartPolicy) -> Outcome:
    """The next attempt, on the rung where the ladder stands."""
    attempt = state.attempt + 1
    state = replace(
        rested(state, at),
        status=Status.STARTING,
        attempt=attempt,
        group=Group(attempt, deadline=at + policy.launch_timeout),
        backoff=None,
        placing=None,
    )
    placement = state.ladder.placement
    if placement is None:
        return state, (StartWorkers(attempt, state.phase, reason),)
    decision = StartWorkers(attempt, state.phase, reason, placement.num_devices, placement.units)
    return state, (decision,)


def back_off(state: JobState, delay: float, reason: str, at: float) -> Outcome:
    """Nothing for `delay` seconds."""
    backoff = Backoff(delay, at + delay, reason)
    state = replace(state, status=Status.BACKOFF, backoff=backoff, placing=None)
    return state, (Wait(delay, reason),)


def finish(state: JobState, status: Status, code: ExitCode, reason: str) -> Outcome:
    """The end of the job, for this run of the command at least."""
    if status is Status.FAILED and (failure := state.last_failure) is not None:
        advice = for_the_end(failure.advice, failure.cause)
        state = replace(state, last_failure=replace(failure, advice=advice))
    state = replace(state, status=status, exit_code=int(code), backoff=None, placing=None)
    return state, (FinishJob(status, code, reason),)


def drained(state: JobState, drain: Drain) -> Outcome:
    """The end, because somebody asked for it."""
    code = ExitCode.STOPPED if drain.source is StopSource.PERSON else ExitCode.DRAINED
    reason = "stopped; run the same command again to resume"
    return finish(state, Status.DRAINED, code, reason)
