"""The decision core: one function from state and event to the next state and what is to be done.

An attempt lives in one arc:

    StartWorkers -> WorkersStarted -> (a worker ends, or somebody wants a stop) -> KillWorkers
    -> WorkersGone -> the next attempt, the next phase, or the end

Every way out of RUNNING leads through `KillWorkers`, whose answer `WorkersGone` says that no
process of the attempt is left and what it died of. Only that answer charges a budget, and only
after it can another attempt start: so two groups never live at once, and nothing is charged twice.
A supervisor that finds an unfinished attempt in its journal goes the same way.

Events that do not fit the state (late, duplicate, of another attempt or phase) change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from supervisor.core.backoff import backoff_delay
from supervisor.core.budget import Budget, Charge
from supervisor.core.decisions import (
    BeginPhase,
    Decision,
    DumpStacks,
    FinishJob,
    KillWorkers,
    SignalWorkers,
    StartWorkers,
    TellRecovery,
    Wait,
)
from supervisor.core.events import (
    CheckpointCommitted,
    DeadlineReached,
    Event,
    LaunchFailed,
    Noticed,
    PhaseBegun,
    StopRequested,
    StopSource,
    SupervisorStarted,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.failure import Failure, Verdict, WorkerExit
from supervisor.core.liveness import Liveness, Silence
from supervisor.core.policy import RestartPolicy
from supervisor.core.recovery import Recovery
from supervisor.core.state import Backoff, Drain, Group, Hang, JobState, Status
from supervisor.core.tactics import Tactics, answer
from supervisor.core.verdicts import hang_failure
from supervisor.protocol.messages import RestoredMessage, StageMessage, StepMessage

Outcome = tuple[JobState, tuple[Decision, ...]]


def step(state: JobState, event: Event, policy: RestartPolicy) -> Outcome:
    """The state after `event`, and the decisions that follow from it."""
    if state.status.terminal and not isinstance(event, SupervisorStarted):
        return state, ()
    return _HANDLERS[type(event)](state, event, policy)


# --- a supervisor starts -----------------------------------------------------------------------


def _supervisor_started(
    state: JobState, event: SupervisorStarted, policy: RestartPolicy
) -> Outcome:
    drained = state.drain is not None
    ended_for_good = state.exit_code is not None and ExitCode(state.exit_code).for_good
    state = replace(
        state,
        job=event.job,
        tactics=state.tactics.run_again(),
        drain=None,
        liveness=Liveness(),
        exit_code=None,
    )
    if state.status is Status.SUCCEEDED:
        return _reopened(state, event.at, policy)
    if state.attempt > 0:
        state = replace(state, recovery=Recovery(event.at, reached=state.recovery.reached))
    state = replace(state, budget=state.budget.committed(event.committed))
    if ended_for_good:
        state = replace(
            state,
            budget=state.budget.fresh(),
            tactics=state.tactics.fresh(),
            directory=None,
            last_failure=None,
        )
    if state.group is not None:
        return _recovered(state, state.group, drained, event.at, policy)
    if state.backoff is not None:
        return _wait(state, state.backoff.delay, state.backoff.reason, event.at, policy)
    reason = "the job starts" if state.attempt == 0 else "the job goes on"
    return _begin(state, reason, event.at, policy)


def _reopened(state: JobState, at: float, policy: RestartPolicy) -> Outcome:
    """A job that succeeded is run again: over, unless there is more to do than there was."""
    target = policy.phases[state.phase].success.step
    if state.reached is not None and target is not None and target > state.reached:
        state = replace(state, budget=state.budget.fresh(), directory=None)
        reason = f"the target grew from step {state.reached} to {target}"
        return _begin(state, reason, at, policy)
    if state.phase + 1 < len(policy.phases):
        return _next_phase(state, "a phase was added", at, policy)
    return _finish(
        state, Status.SUCCEEDED, ExitCode.SUCCEEDED, "the job has succeeded already: nothing to do"
    )


def _recovered(
    state: JobState, group: Group, drained: bool, at: float, policy: RestartPolicy
) -> Outcome:
    """The last supervisor left a group in flight: charged only if it had ended by itself first."""
    ended = group.all_ended or _some_failed(group.exits, state, policy)
    group = replace(group, abandoned=group.abandoned or drained or not ended)
    state = replace(state, group=group)
    return _kill(state, at, "the supervisor of this attempt ended before it did", policy)


def _begin(state: JobState, reason: str, at: float, policy: RestartPolicy) -> Outcome:
    """Start the phase if it has no directory yet, else the next attempt."""
    if state.directory is None:
        again = at + policy.confirm_interval
        state = replace(state, status=Status.STARTING, begin_again=again)
        return state, (BeginPhase(state.phase, reason),)
    return _start(state, reason, at, policy)


def _start(state: JobState, reason: str, at: float, policy: RestartPolicy) -> Outcome:
    attempt = state.attempt + 1
    waited = state.backoff is not None
    state = replace(
        state,
        status=Status.STARTING,
        attempt=attempt,
        group=Group(attempt, deadline=at + policy.launch_timeout),
        backoff=None,
        recovery=state.recovery.spent("backoff", at) if waited else state.recovery,
    )
    return state, (StartWorkers(attempt, state.phase, reason),)


def _phase_begun(state: JobState, event: PhaseBegun, policy: RestartPolicy) -> Outcome:
    if event.phase != state.phase or state.directory is not None:
        return state, ()
    budget = state.budget.committed(event.committed)
    state = replace(state, directory=event.directory, budget=budget, begin_again=None)
    if state.drain is not None:
        return _drained(state, state.drain)
    name = policy.phases[event.phase].name
    return _start(state, f"phase {name!r} starts", event.at, policy)


# --- the attempt lives -------------------------------------------------------------------------


def _workers_started(state: JobState, event: WorkersStarted, policy: RestartPolicy) -> Outcome:
    group = state.group
    if group is None or group.attempt != event.attempt:
        return state, ()
    if group.killing or group.world_size is not None:
        return state, ()
    group = replace(group, world_size=len(event.pids))
    recovery = state.recovery.started(event.began, event.at, standby=event.standby)
    state = replace(state, recovery=recovery)
    phase = policy.phases[state.phase]
    if phase.reports_stages:
        state = replace(state, liveness=state.liveness.started(event.at, phase.deadlines))
    if state.drain is not None:
        return _ask_to_stop(state, group, state.drain, event.at, policy)
    return replace(state, status=Status.RUNNING, group=replace(group, deadline=None)), ()


def _worker_reported(state: JobState, event: WorkerReported, policy: RestartPolicy) -> Outcome:
    if not _is_current(state, event.attempt):
        return state, ()
    overrides = policy.phases[state.phase].deadlines
    liveness = state.liveness.heard(event.message, event.at, overrides)
    recovery, decisions = _recovering(state, event)
    return replace(state, liveness=liveness, recovery=recovery), decisions


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
        case StepMessage(step):
            whole = recovery.left(doing.stage, event.at)
            return Recovery(), (TellRecovery(event.attempt, step, whole.parts, whole.lost),)
        case _:
            return recovery, ()


def _noticed(state: JobState, event: Noticed, policy: RestartPolicy) -> Outcome:
    return state, ()


def _checkpoint_committed(
    state: JobState, event: CheckpointCommitted, policy: RestartPolicy
) -> Outcome:
    if event.phase != state.phase:
        return state, ()
    return replace(state, budget=state.budget.committed(event.step)), ()


def _is_current(state: JobState, attempt: int) -> bool:
    return state.group is not None and state.group.attempt == attempt


# --- the attempt ends --------------------------------------------------------------------------


def _workers_observed(state: JobState, event: WorkersObserved, policy: RestartPolicy) -> Outcome:
    group = state.group
    if group is None or group.attempt != event.attempt or group.killing:
        return state, ()
    # If the answer to StartWorkers was lost, this is as good.
    started = WorkersStarted(event.at, event.attempt, event.pids)
    state, decisions = _workers_started(state, started, policy)
    group = state.group
    assert group is not None
    if len(event.exits) <= len(group.exits):
        return state, decisions
    if not group.exits and group.hang is None:
        state = replace(state, recovery=state.recovery.died(event.at))
    group = replace(group, exits=event.exits)
    state = replace(state, group=group)
    if group.all_ended:
        return _kill(state, event.at, _ended(group.exits), policy)
    if state.drain is None and _some_failed(group.exits, state, policy):
        # One for all: the others would hang in a collective. They get the time to say farewell.
        deadline = event.at + policy.farewell
        state = replace(state, status=Status.STOPPING, group=replace(group, deadline=deadline))
    return state, decisions


def _some_failed(exits: tuple[WorkerExit, ...], state: JobState, policy: RestartPolicy) -> bool:
    success = policy.phases[state.phase].success
    return any(ended.code != success.exit_code for ended in exits)


def _ended(exits: tuple[WorkerExit, ...]) -> str:
    if len(exits) == 1:
        return f"the worker ended: {exits[0]}"
    return "the workers ended: " + ", ".join(f"rank {ended.rank} {ended}" for ended in exits)


def _kill(state: JobState, at: float, reason: str, policy: RestartPolicy) -> Outcome:
    group = state.group
    assert group is not None
    recovery = state.recovery
    if not group.killing:
        recovery = recovery.spent("detect" if group.hang is None else "stop", at)
    group = replace(group, killing=True, deadline=at + policy.confirm_interval)
    state = replace(state, status=Status.STOPPING, group=group, recovery=recovery)
    return state, (KillWorkers(group.attempt, group.exits, reason),)


def _workers_gone(state: JobState, event: WorkersGone, policy: RestartPolicy) -> Outcome:
    group = state.group
    if group is None or group.attempt != event.attempt or not group.killing:
        return state, ()
    budget = state.budget.committed(event.committed)
    recovery = state.recovery.gone(event.at, event.step)
    state = replace(state, group=None, budget=budget, liveness=Liveness(), recovery=recovery)
    # A trainer that is asked to stop saves and exits 0: that alone is no sign of finished work.
    asked = state.drain is not None or group.hang is not None
    believed = not asked or policy.phases[state.phase].success.is_proof
    if event.failure is None and not group.abandoned and believed:
        return _phase_succeeded(state, event.at, policy)
    if state.drain is not None:
        return _drained(replace(state, last_failure=event.failure), state.drain)
    failure = hang_failure(event.failure, group.hang) if group.hang is not None else event.failure
    if group.abandoned or failure is None:
        reason = "the last attempt was lost with its supervisor: nothing is charged"
        return _start(state, reason, event.at, policy)
    return _failed(state, failure, event.adjustable, event.at, policy)


def _launch_failed(state: JobState, event: LaunchFailed, policy: RestartPolicy) -> Outcome:
    if not _is_current(state, event.attempt):
        return state, ()
    recovery = state.recovery.died(event.at)
    state = replace(state, group=None, liveness=Liveness(), recovery=recovery)
    if state.drain is not None:
        return _drained(state, state.drain)
    return _failed(state, event.failure, (), event.at, policy)


def _phase_succeeded(state: JobState, at: float, policy: RestartPolicy) -> Outcome:
    name = policy.phases[state.phase].name
    if state.phase + 1 < len(policy.phases):
        if state.drain is None:
            return _next_phase(state, f"phase {name!r} succeeded", at, policy)
        return _drained(_in_phase(state, state.phase + 1), state.drain)
    state = replace(state, reached=policy.phases[state.phase].success.step)
    reason = f"phase {name!r} succeeded" if len(policy.phases) > 1 else "the job succeeded"
    return _finish(state, Status.SUCCEEDED, ExitCode.SUCCEEDED, reason)


def _next_phase(state: JobState, reason: str, at: float, policy: RestartPolicy) -> Outcome:
    return _begin(_in_phase(state, state.phase + 1), reason, at, policy)


def _in_phase(state: JobState, phase: int) -> JobState:
    return replace(
        state,
        phase=phase,
        directory=None,
        budget=Budget(),
        tactics=Tactics(),
        recovery=Recovery(),
        last_failure=None,
    )


def _failed(
    state: JobState,
    failure: Failure,
    adjustable: Collection[str],
    at: float,
    policy: RestartPolicy,
) -> Outcome:
    """An attempt failed: end for good, or charge and go on."""
    state = replace(state, last_failure=failure)
    if failure.verdict is Verdict.FATAL:
        return _finish(state, Status.FAILED, ExitCode.FAILED, failure.reason)
    course = answer(state.tactics, failure, state.budget.highest, adjustable)
    state = replace(state, tactics=course.tactics)
    if course.end is not None:
        return _finish(state, Status.FAILED, course.end, course.told)
    limits = policy.phases[state.phase]
    signature = None if failure.remedy is not None else failure.signature
    state = replace(state, budget=state.budget.failed(signature, limits))
    repeated = state.budget.repetitions(signature)
    if 0 < state.budget.repetition_limit(limits) <= repeated:
        return _finish(state, Status.FAILED, ExitCode.FAILED, _repeated(failure, repeated))
    budget = state.budget.charge(failure.charge, limits)
    if budget is None:
        limit = getattr(limits, f"max_num_{failure.charge}")
        return _finish(
            state,
            Status.FAILED,
            ExitCode.BUDGET_SPENT,
            f"the budget of {limit} {failure.charge} without a new checkpoint is spent",
        )
    state = replace(state, budget=budget)
    told = f"; {course.told}" if course.told else ""
    reason = f"attempt {state.attempt} failed: {failure.cause}{told}"
    failures = budget.failures if course.backoff is None else course.backoff
    salt = f"{state.job}/{state.attempt}"
    delay = backoff_delay(failures + course.ahead, policy, salt=salt)
    if failure.charge is Charge.PREEMPTIONS:
        delay = max(delay, policy.corroboration)
    return _wait(state, delay, reason, at, policy)


def _repeated(failure: Failure, times: int) -> str:
    return (
        f"the same failure came {times} times without a new checkpoint between "
        f"(signature {failure.signature}): it would come again"
    )


def _wait(state: JobState, delay: float, reason: str, at: float, policy: RestartPolicy) -> Outcome:
    if delay <= 0:
        return _start(state, reason, at, policy)
    backoff = Backoff(delay, at + delay, reason)
    return replace(state, status=Status.BACKOFF, backoff=backoff), (Wait(delay, reason),)


def _finish(state: JobState, status: Status, code: ExitCode, reason: str) -> Outcome:
    state = replace(state, status=status, exit_code=int(code), backoff=None)
    return state, (FinishJob(status, code, reason),)


# --- somebody wants a stop, or a deadline has come ---------------------------------------------


def _stop_requested(state: JobState, event: StopRequested, policy: RestartPolicy) -> Outcome:
    if state.drain is not None:
        return _asked_again(state, state.drain, event, policy)
    drain = Drain(event.source, event.at)
    state = replace(state, drain=drain)
    group = state.group
    if group is None:
        # Without a group the job waits (BACKOFF), or its phase is just beginning and will notice.
        return _drained(state, drain) if state.backoff is not None else (state, ())
    if group.killing:
        return state, ()
    if group.world_size is None:  # asked as soon as it runs; but nobody waits for that for ever
        group = replace(group, deadline=event.at + policy.grace_period)
        return replace(state, group=group), ()
    return _ask_to_stop(state, group, drain, event.at, policy)


def _ask_to_stop(
    state: JobState, group: Group, drain: Drain, at: float, policy: RestartPolicy
) -> Outcome:
    return _signal(state, group, f"{_WHO[drain.source]}: save and exit", at, policy)


_WHO = {
    StopSource.SIGTERM: "told to stop (SIGTERM)",
    StopSource.PERSON: "stopped by a person",
    StopSource.PREEMPTION: "a preemption is announced",
}


def _signal(
    state: JobState, group: Group, reason: str, at: float, policy: RestartPolicy
) -> Outcome:
    """SIGTERM, and SIGKILL when the grace period is over; a deadline that is nearer stays."""
    deadline = at + policy.grace_period
    if group.deadline is not None and (group.hang is None or group.hang.asked):
        deadline = min(deadline, group.deadline)
    hang = replace(group.hang, asked=True) if group.hang is not None else None
    group = replace(group, deadline=deadline, hang=hang)
    state = replace(state, status=Status.STOPPING, group=group)
    return state, (SignalWorkers(group.attempt, reason),)


def _asked_again(
    state: JobState, drain: Drain, event: StopRequested, policy: RestartPolicy
) -> Outcome:
    """Impatience shortens the grace period; an echo within a second does not.

    Nor does an announcement, nor the signal that it announced: that one says who stopped the job.
    """
    if event.source is StopSource.PREEMPTION:
        return state, ()
    if drain.source is StopSource.PREEMPTION:
        return replace(state, drain=Drain(event.source, event.at)), ()
    group = state.group
    if group is None or group.deadline is None or event.at - drain.at <= 1.0:
        return state, ()
    deadline = min(group.deadline, event.at + policy.impatient_grace_period)
    return replace(state, group=replace(group, deadline=deadline)), ()


def _drained(state: JobState, drain: Drain) -> Outcome:
    code = ExitCode.STOPPED if drain.source is StopSource.PERSON else ExitCode.DRAINED
    reason = "stopped; run the same command again to resume"
    return _finish(state, Status.DRAINED, code, reason)


def _deadline_reached(state: JobState, event: DeadlineReached, policy: RestartPolicy) -> Outcome:
    group = state.group
    if event.silence is not None:
        if group is None or group.attempt != event.silence.attempt or group.deadline is not None:
            return state, ()
        return _hung(state, group, event.silence, event.at, policy)
    if state.due is None or event.at < state.due:
        return state, ()
    if state.backoff is not None:
        return _start(state, state.backoff.reason, event.at, policy)
    if group is None:
        return _begin(state, "its directory is not there yet", event.at, policy)
    if group.hang is not None and not group.hang.asked and not group.killing:
        return _signal(state, group, "it hangs", event.at, policy)
    return _kill(state, event.at, _overdue(state, group), policy)


def _overdue(state: JobState, group: Group) -> str:
    """Why a group whose time is over is killed."""
    if group.killing:
        return "its processes are not confirmed gone yet"
    if state.drain is not None or group.hang is not None:
        return "the grace period is over"
    if group.world_size is None:
        return "nothing tells that its workers were started"
    return _ended(group.exits)


def _hung(
    state: JobState, group: Group, silence: Silence, at: float, policy: RestartPolicy
) -> Outcome:
    hang = Hang(silence.stage, silence.seconds)
    group = replace(group, hang=hang, deadline=at + policy.stack_dump)
    recovery = state.recovery.died(at - silence.seconds).spent("detect", at)
    state = replace(state, status=Status.STOPPING, group=group, recovery=recovery)
    reason = f"nothing was heard of it for {silence.seconds:.1f} s in stage {silence.stage}"
    return state, (DumpStacks(group.attempt, reason),)


_HANDLERS: dict[type, Callable[[JobState, Any, RestartPolicy], Outcome]] = {
    SupervisorStarted: _supervisor_started,
    PhaseBegun: _phase_begun,
    WorkersStarted: _workers_started,
    LaunchFailed: _launch_failed,
    WorkerReported: _worker_reported,
    Noticed: _noticed,
    CheckpointCommitted: _checkpoint_committed,
    WorkersObserved: _workers_observed,
    WorkersGone: _workers_gone,
    StopRequested: _stop_requested,
    DeadlineReached: _deadline_reached,
}
