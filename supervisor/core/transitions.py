"""The transitions that all of the core shares: next attempt, wait, SIGTERM, end of the job.

go_on -> the next attempt. If there is a reason to doubt its devices, `ProbeDevices` comes first,
         and `ending.probed` handles the answer `DevicesProbed` by means of `capacity_check`
"""

from __future__ import annotations

import zlib
from dataclasses import replace

from supervisor.config.judgement import Remedy
from supervisor.core.decisions import (
    Decision,
    FinishJob,
    MakeRoom,
    ProbeDevices,
    SignalWorkers,
    StartWorkers,
    TellStages,
    Wait,
)
from supervisor.core.doing import (
    BackingOff,
    Cause,
    Drained,
    Ended,
    Failed,
    Hang,
    Launching,
    Lingering,
    Probing,
    Running,
    Stopping,
    Suspicion,
    Waiting,
)
from supervisor.core.events import StopSource
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import RestartPolicy
from supervisor.core.snapshot_use import distrust
from supervisor.core.state import Drain, JobState
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.rules import FULL_DISK_RULES
from supervisor.diagnosis.rules.wording import advice_at_the_end
from supervisor.host.retry import Pauses

StepResult = tuple[JobState, tuple[Decision, ...]]


_RESTS: dict[type, str] = {BackingOff: "backoff", Probing: "probe", Waiting: "capacity"}


def rested(state: JobState, at: float) -> JobState:
    """Returns the state with the time of a backoff, probe or wait added to the recovery."""
    part = _RESTS.get(type(state.doing))
    return replace(state, recovery=state.recovery.spent(part, at)) if part is not None else state


def go_on(state: JobState, reason: str, at: float, policy: RestartPolicy) -> StepResult:
    """Go on to the next attempt; probe the devices first if there is a reason to doubt them."""
    state = replace(state, quarantine=state.quarantine.expired(at))
    phase = policy.phases[state.phase]
    in_use = state.ladder.units(phase)
    doubtful = state.ladder.doubtful or state.ladder.is_shrunk(phase)
    doubtful |= phase.num_hosts > 0 and state.ladder.placement is None
    if doubtful or state.quarantine.units.intersection(in_use):
        return probe(state, reason, at, policy)
    return start(state, reason, at, policy)


def probe(
    state: JobState,
    reason: str,
    at: float,
    policy: RestartPolicy,
    *,
    short_since: float | None = None,
    suspicion: Suspicion | None = None,
    missing: tuple[str, ...] = (),
) -> StepResult:
    """Probe all devices before the next attempt. For `missing` see `Waiting`."""
    probing = Probing(reason, at + policy.probe_timeout, short_since, suspicion, missing)
    return probe_units(replace(rested(state, at), doing=probing), None, reason)


def probe_units(state: JobState, units: tuple[str, ...] | None, reason: str) -> StepResult:
    """Decide a probe of `units`; None: of all devices."""
    state = replace(state, looks=state.looks + 1)
    left_out = tuple(sorted(state.quarantine.units))
    look = ProbeDevices(state.looks, state.attempt, state.phase, units, reason, left_out)
    return state, (look,)


def start(state: JobState, reason: str, at: float, policy: RestartPolicy) -> StepResult:
    """Start the next attempt on the present rung of the ladder."""
    attempt = state.attempt + 1
    state = replace(
        rested(state, at),
        attempt=attempt,
        stragglers=(),
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
        failures=state.failure_rate.history,
        distrust=distrust(failure),
        make_room=_make_room(failure),
        checkpoints=state.checkpoints,
        kinds=state.checkpoint_kinds,
    )
    return state, (decision,)


def _make_room(failure: Failure | None) -> MakeRoom | None:
    if failure is None or failure.rule not in FULL_DISK_RULES:
        return None
    return MakeRoom.ALWAYS if "quota" in failure.root_cause.lower() else MakeRoom.IF_SHORT


def backoff_delay(failures: int, policy: RestartPolicy, *, salt: str) -> float:
    """Seconds to wait after the `failures`-th failure in a row without progress (1 is the first).

    The jitter comes from `salt` (job and attempt), not from a random source: many jobs that died
    together still spread out, and a replayed journal gives the same delay.
    """
    if failures <= 1:
        return 0.0
    delay = Pauses(policy.backoff_first, policy.backoff_max).before(failures - 1)
    fraction = zlib.crc32(salt.encode()) / 0xFFFFFFFF
    return delay * (1.0 + policy.backoff_jitter * (2.0 * fraction - 1.0))


def back_off(state: JobState, delay: float, reason: str, at: float) -> StepResult:
    """Wait `delay` seconds before the next attempt."""
    failure = state.last_failure
    is_busy = failure is not None and failure.remedy is Remedy.WAIT
    state = replace(state, doing=BackingOff(delay, at + delay, reason))
    return state, (Wait(delay, reason, device_is_busy=is_busy),)


def signal(
    state: JobState,
    group: Running | Stopping | Lingering,
    reason: str,
    at: float,
    policy: RestartPolicy,
    cause: Cause,
    grace: float | None = None,
) -> StepResult:
    """Send SIGTERM, and set the deadline for SIGKILL.

    `grace` is the grace period in seconds; None: the policy's. An earlier deadline stays, except
    the one for the stack dump of a hung group.
    """
    deadline = at + (policy.grace_period if grace is None else grace)
    dumps = isinstance(cause, Hang) and not cause.asked
    if isinstance(cause, Hang):
        cause = replace(cause, asked=True, saved=state.newest)
    if isinstance(group, Running):
        group = Stopping(group.workers, cause, deadline)
    else:
        deadline = deadline if dumps else min(deadline, group.deadline)
        group = replace(group, cause=cause, deadline=deadline)
    interrupt = state.drain is not None and state.drain.source is StopSource.PERSON
    return replace(state, doing=group), (SignalWorkers(state.attempt, reason, interrupt),)


def tell_stages(state: JobState, at: float, step: int | None) -> StepResult:
    """Record the time in each stage since the last record; `step` is the last completed step."""
    stages = state.stages.until(at)
    if stages.mark is None:
        return state, ()
    told = TellStages(state.attempt, stages.stage, step, stages.seconds, stages.untold)
    return replace(state, stages=stages.told()), (told,)


def finish(state: JobState, end: Ended, reason: str) -> StepResult:
    """End the job; running the command again may continue it."""
    if isinstance(end, Failed) and (failure := state.last_failure) is not None:
        kept = state.newest is not None
        advice = advice_at_the_end(failure.advice, failure.cause, has_checkpoint=kept)
        state = replace(state, last_failure=replace(failure, advice=advice))
    return replace(state, doing=end), (FinishJob(end.status, end.exit_code, reason),)


def drained(state: JobState, drain: Drain) -> StepResult:
    """End the job because it was asked to stop."""
    code = ExitCode.STOPPED if drain.source is StopSource.PERSON else ExitCode.DRAINED
    reason = "stopped; run the same command again to resume"
    return finish(state, Drained(code), reason)
