"""How an attempt ends: killed, confirmed gone, judged, charged; and what follows from that.

Only `WorkersGone` or `LaunchFailed` leads to a charge. A failure that points at the devices is
charged after a probe, and only if the probe finds them healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from supervisor.core.budget import Budget, Charge
from supervisor.core.capacity_check import (
    Shortage,
    bad_units_in_use,
    choose,
    move_to_rung,
    note_seen,
    quarantine_bad_units,
    suspect,
    wait,
)
from supervisor.core.decisions import KillWorkers, TellLivelock
from supervisor.core.doing import (
    Alive,
    Cause,
    Failed,
    Hang,
    Idle,
    Killing,
    MakesWay,
    NotFinite,
    Probing,
    Workers,
    cause_of,
    workers_of,
)
from supervisor.core.events import DevicesProbed, LaunchFailed, WorkersGone
from supervisor.core.exit_codes import ExitCode
from supervisor.core.guesses import Guess
from supervisor.core.livelock import Goodput
from supervisor.core.liveness import Liveness
from supervisor.core.phases import phase_succeeded
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.remediation import answer
from supervisor.core.state import JobState
from supervisor.core.transitions import (
    StepResult,
    back_off,
    backoff_delay,
    drained,
    finish,
    go_on,
    start,
    tell_stages,
)
from supervisor.diagnosis.failure import Failure, WorkerExit
from supervisor.diagnosis.verdicts import hang_failure, not_finite_failure, unproven_failure
from supervisor.protocol.messages import Stage

_MOST_NAMED = 8
"""Most workers whose ends a reason names: it is journalled, and people read it."""


def kill(
    state: JobState,
    group: Alive,
    at: float,
    reason: str,
    policy: RestartPolicy,
    *,
    abandoned: bool = False,
) -> StepResult:
    """Kill what is left of the group; `abandoned`: its end will not be charged."""
    deadline, workers = at + policy.confirm_interval, workers_of(group)
    exits = workers.exits if workers is not None else ()
    is_late = workers is not None and ended_well(state, workers, policy) and not state.ends_group
    late = workers.survivors if workers is not None and is_late else ()
    recovery, directory = state.recovery, state.directory
    assert directory is not None
    if isinstance(group, Killing):
        killing = replace(group, deadline=deadline, abandoned=group.abandoned or abandoned)
    else:
        killing = Killing(group, deadline, abandoned=abandoned)
        recovery = recovery.spent("stop" if isinstance(cause_of(group), Hang) else "detect", at)
    state = replace(state, doing=killing, recovery=recovery)
    found, kinds = state.checkpoints, state.checkpoint_kinds
    phase = state.phase
    return state, (KillWorkers(state.attempt, exits, reason, late, phase, directory, found, kinds),)


def ended_well(state: JobState, workers: Workers, policy: RestartPolicy) -> bool:
    """Whether every worker ended with the exit code of success, and none after a SIGTERM that
    the supervisor did not send."""
    code = policy.phases[state.phase].success.exit_code
    return workers.all_ended and all(
        ended.code == code and not ended.told_to_stop for ended in workers.exits
    )


def some_failed(exits: tuple[WorkerExit, ...], state: JobState, policy: RestartPolicy) -> bool:
    """Whether any of these exits is a failure."""
    success = policy.phases[state.phase].success
    return any(ended.code != success.exit_code for ended in exits)


def told_ends(workers: Workers) -> str:
    """Returns a sentence about how the workers ended that have."""
    exits = workers.exits
    if workers.world_size == 1:
        return f"the worker ended: {exits[0]}"
    told = ", ".join(f"rank {ended.rank} {ended}" for ended in exits[:_MOST_NAMED])
    more = len(exits) - _MOST_NAMED
    return f"these workers ended: {told}" + (f" and {more} more" if more > 0 else "")


def workers_gone(state: JobState, event: WorkersGone, policy: RestartPolicy) -> StepResult:
    """No process of the attempt is left: decide what its end leads to."""
    group = state.doing
    if not isinstance(group, Killing) or state.attempt != event.attempt:
        return state, ()
    state = replace(state, stages=state.stages.ended(event.at))
    state, told = tell_stages(state, event.at, event.step)
    state = replace(state, stages=state.stages.gone())
    state, decisions = _group_gone(state, group, event, policy)
    return state, (*decisions, *told)


def _group_gone(
    state: JobState, group: Killing, event: WorkersGone, policy: RestartPolicy
) -> StepResult:
    asked, cause, before = state.ends_group, cause_of(group), state
    if event.committed is not None:  # else nobody could look, perhaps
        state = state.found(event.committed, event.at)
    state = replace(
        state,
        initialises_again=False,
        liveness=Liveness(),
        recovery=state.recovery.gone(event.at, event.step),
        goodput=state.goodput.gone(),
        failure_rate=state.failure_rate.gone(event.at),
        budget=state.budget.told(event.step, trained=event.trained),
        ladder=replace(state.ladder, larger_since=None, look_at=None),
    )
    phase = policy.phases[state.phase]
    is_done = not group.abandoned and work_is_done(state.budget, event.committed, phase)
    if isinstance(cause, Hang | Idle) and is_done:
        return phase_succeeded(state, event.at, policy, _why_done(cause, event.committed))
    failure = event.failure or _unproven_success(state, event, policy)
    # A trainer that is asked to stop saves and exits 0: that alone is no sign of finished work.
    believed = not asked or phase.success.is_proof or event.heard_no_sigterm
    if failure is None and not group.abandoned and believed:
        return phase_succeeded(state, event.at, policy)
    failure = _judged(failure, cause, event.stood_at)
    if state.drain is not None:
        return drained(replace(state, last_failure=failure), state.drain)
    if not group.abandoned and isinstance(cause, MakesWay) and cause.explains(failure):
        return _made_way(state, cause, event.at, policy)
    if group.abandoned or failure is not None:
        state = replace(state, failure_rate=state.failure_rate.failed())
    is_lost = group.abandoned and not isinstance(cause, NotFinite)
    if is_lost or failure is None:
        reason = "the last attempt was lost with its supervisor: nothing is charged"
        return go_on(state, reason, event.at, policy)
    if isinstance(cause, NotFinite):
        return _diverged(state, failure, cause, event, policy)
    return _ended_badly(before, state, failure, event, policy)


def _made_way(state: JobState, cause: MakesWay, at: float, policy: RestartPolicy) -> StepResult:
    """The group stopped as it was asked to: go on, perhaps with other units, and charge nothing."""
    if cause.restarts:
        return go_on(state, f"{cause.restarts}: nothing is charged", at, policy)
    if not cause.leaving:
        return go_on(state, "it made way for a larger rung: nothing is charged", at, policy)
    state = replace(state, ladder=replace(state.ladder, doubtful=True))
    return go_on(state, f"{cause.leaving}: nothing is charged", at, policy)


def _ended_badly(
    before: JobState, state: JobState, failure: Failure, event: WorkersGone, policy: RestartPolicy
) -> StepResult:
    """The attempt failed; `before` is the state before its end was known."""
    assert isinstance(before.doing, Killing)
    cause = cause_of(before.doing)
    if failure.is_guess and failure.step is None and not event.step_recognised:
        failure = replace(failure, step=event.step)
    if isinstance(cause, Hang) and _may_initialise_again(before, failure, cause, policy):
        state = replace(state, initialises_again=True, last_failure=failure)
        reason = (
            f"{failure.cause}: a chip that was just in use may take long to come up, so it is "
            "tried once more, with more time; nothing is charged or blamed"
        )
        return go_on(state, reason, event.at, policy)
    return _failed(state, failure, event.adjustable, event.at, policy)


def _unproven_success(state: JobState, event: WorkersGone, policy: RestartPolicy) -> Failure | None:
    """Returns the failure of a command whose success only a base model's step would prove; None:
    the success stands."""
    success, budget, step = policy.phases[state.phase].success, state.budget, event.committed
    if success.step is None or success.committed or step is None or step < success.step:
        return None
    if event.step is not None and event.step >= success.step:
        return None
    is_proven = budget.proves(step, success.step, exited=True)
    return None if is_proven else unproven_failure(step, success.step, event.step, event.exits)


def work_is_done(
    budget: Budget, committed: int | None, phase: PhasePolicy, *, exited: bool = False
) -> bool:
    """Whether the success step is declared, and `committed`, the newest committed step, is no base
    model's and has reached it. `exited` as in `Budget.proves`."""
    target = phase.success.step
    if target is None or committed is None or committed < target:
        return False
    return phase.success.committed or budget.proves(committed, target, exited=exited)


def _judged(end: Failure | None, cause: Cause | None, stood_at: str) -> Failure | None:
    """Returns the failure of a group that the supervisor ended for `cause`; `end` is its judged
    end, and `stood_at` where it stood."""
    match cause:
        case Hang(stage, seconds):
            return hang_failure(end, stage, seconds, stood_at)
        case Idle(seconds):
            return hang_failure(end, Stage.FINISHING, seconds, stood_at)
        case NotFinite(since, times, finite, before):
            return not_finite_failure(end, since, times, finite, before)
        case _:
            return end


def _why_done(cause: Hang | Idle, committed: int | None) -> str:
    return (
        f"step {committed} is committed, and the program did not exit within "
        f"{cause.seconds:.0f} s: it was ended, and its work is done"
    )


def _diverged(
    state: JobState, failure: Failure, cause: NotFinite, event: WorkersGone, policy: RestartPolicy
) -> StepResult:
    """The losses stayed NaN or Inf: go back to the newest checkpoint, if it is from before."""
    if not state.saved_since(cause.since, event.step):
        return _failed(state, failure, event.adjustable, event.at, policy)
    reason = (
        f"the losses are NaN or Inf from step {cause.since} on, and step {state.newest} was saved "
        "after that: another attempt would go on from there"
    )
    return finish(replace(state, last_failure=failure), Failed(ExitCode.FAILED), reason)


def _may_initialise_again(
    state: JobState, failure: Failure, hang: Hang, policy: RestartPolicy
) -> bool:
    """Whether it hung in an initialisation with a shortened time limit, so that another try is
    free."""
    phase, is_in_it = policy.phases[state.phase], hang.stage is Stage.INITIALIZING
    is_short = phase.first_initialising is not None and Stage.INITIALIZING not in phase.deadlines
    return is_short and is_in_it and not state.initialises_again and failure.rule == "hang"


def launch_failed(state: JobState, event: LaunchFailed, policy: RestartPolicy) -> StepResult:
    """The attempt could not be started."""
    if not isinstance(state.doing, Alive) or state.attempt != event.attempt:
        return state, ()
    recovery = state.recovery.died(event.at)
    stages, rate = state.stages.gone(), state.failure_rate.gone(event.at)
    state = replace(state, liveness=Liveness(), recovery=recovery, stages=stages, failure_rate=rate)
    if state.drain is not None:
        return drained(replace(state, last_failure=event.failure), state.drain)
    return _failed(state, event.failure, (), event.at, policy)


def _failed(
    state: JobState,
    failure: Failure,
    adjustable: tuple[str, ...],
    at: float,
    policy: RestartPolicy,
) -> StepResult:
    """An attempt failed: end the job, probe the devices, or charge a budget and go on."""
    phase = policy.phases[state.phase]
    found_wrong = state.quarantine.units.intersection(state.ladder.units(phase))
    state = _blamed(replace(state, last_failure=failure), failure, at, policy)
    if failure.is_certain:
        return _believed(state, failure, failure.reason, at, policy)
    if found_wrong:  # by the attempt itself: it was not started on what is in quarantine
        what = "a host" if phase.workers_are_units else "a device"
        reason = f"attempt {state.attempt} failed: {failure.cause}; not the program, but {what}"
        return go_on(state, f"{reason}: nothing is charged", at, policy)
    host_may_be_gone = phase.workers_are_units and failure.struck
    if phase.num_units and (failure.hardware or host_may_be_gone):
        return suspect(state, failure, adjustable, at, policy)
    return _charged(state, failure, adjustable, at, policy, go_on)


def _believed(
    state: JobState, failure: Failure, reason: str, at: float, policy: RestartPolicy
) -> StepResult:
    """A failure that would come again ends the job because of `reason`. If it may be so on this
    smaller rung only, the rung is taken from the ladder instead."""
    phase, ladder = policy.phases[state.phase], state.ladder
    rung = ladder.num_devices(phase)
    if not (failure.per_rung and ladder.is_shrunk(phase)) or rung is None:
        return finish(state, Failed(ExitCode.FAILED), reason)
    state = replace(state, ladder=ladder.strike(rung, failure.cause))
    reason = f"{failure.cause} on {rung} devices: that rung is disabled"
    return go_on(state, reason, at, policy)


def _blamed(state: JobState, failure: Failure, at: float, policy: RestartPolicy) -> JobState:
    """Count the failure against the host of its root cause, and quarantine a host with too many.

    A host is quarantined only if the others make up a rung: the fault need not be the host's.
    """
    phase = policy.phases[state.phase]
    units = state.ladder.units(phase)
    if not (phase.workers_are_units and failure.blames_host and failure.rank < len(units)):
        return state
    unit = units[failure.rank]
    quarantine = state.quarantine.blame(unit, at, policy.blame_window)
    times = quarantine.times_blamed(unit)
    others = frozenset(phase.units or state.ladder.seen or units) - quarantine.units - {unit}
    if times >= policy.blame_limit and state.ladder.place(phase, others) is not None:
        reason = f"root cause of {times} failures, the last: {failure.cause}"
        quarantine = quarantine.cleared([unit]).add({unit: reason}, at + policy.quarantine_for)
    return replace(state, quarantine=quarantine)


def probed(
    state: JobState, probing: Probing, event: DevicesProbed, policy: RestartPolicy
) -> StepResult:
    """A probe answered: choose the rung of the next attempt, and charge the last failure or not.
    End the job with INVALID_CONFIG if only a person can make any unit usable."""
    state = note_seen(quarantine_bad_units(state, event, policy), event, policy)
    if event.obstacle is not None and event.obstacle.lasts:
        return finish(state, Failed(ExitCode.INVALID_CONFIG), event.obstacle.reason)
    unknown = event.problem is not None
    found = state.ladder.units(policy.phases[state.phase]) if unknown else event.healthy
    since = event.at if probing.short_since is None else probing.short_since
    gone = bad_units_in_use(state, event, policy)
    chosen = choose(state, found, since, event.at, policy, event.obstacle)
    if not isinstance(chosen, Shortage):
        state = move_to_rung(state, chosen, event.at, policy)
    suspicion, reason = probing.suspicion, probing.reason
    if suspicion is not None and not gone and event.obstacle is None:
        proceed = go_on if isinstance(chosen, Shortage) else start
        failure, adjustable = suspicion.failure, suspicion.adjustable
        if event.problem is not None:
            failure = replace(failure, advice=_unproven(event.problem))
            state = replace(state, last_failure=failure)
        return _charged(state, failure, adjustable, event.at, policy, proceed)
    if suspicion is not None:
        what = "a host" if policy.phases[state.phase].num_hosts else "its devices"
        reason = f"{reason}; not the program, but {what}: nothing is charged"
    if isinstance(chosen, Shortage):
        return wait(state, reason, chosen, since, event, policy)
    return start(state, reason, event.at, policy)


def _unproven(problem: str) -> str:
    """Returns the advice for a failure that points at devices which nobody could probe."""
    why = f"See why the devices could not be probed ({problem})"
    return f"{why}: nothing shows that they are at fault."


def _charged(
    state: JobState,
    failure: Failure,
    adjustable: Collection[str],
    at: float,
    policy: RestartPolicy,
    proceed: Callable[[JobState, str, float, RestartPolicy], StepResult],
) -> StepResult:
    """Charge the failure; then `proceed`, at once or after a backoff, or end the job."""
    course = answer(state.remediation, failure, state.budget.highest, adjustable)
    state = replace(state, remediation=course.remediation)
    if course.end is not None:
        return finish(state, Failed(course.end), course.told)
    limits = policy.phases[state.phase]
    state, too_often = _remembered(state, failure, limits)
    budget = None if too_often else state.budget.charge(failure.charge, limits)
    elsewhere = state.budget.on_another_machine(limits)
    if budget is None and elsewhere is not None and failure.machine and policy.replaceable:
        reason = f"{failure.cause}, again and again on this machine: another one is to replace it"
        state = replace(state, budget=elsewhere)
        return finish(state, Failed(ExitCode.NO_CAPACITY), reason)
    if too_often:
        return _believed(state, failure, too_often, at, policy)
    if budget is None:
        why = state.budget.why_spent(failure.charge, limits)
        if failure.is_guess:
            why = f"{failure.cause}; whether it would come again cannot be tried: {why}"
            return _believed(state, failure, why, at, policy)
        return finish(state, Failed(ExitCode.BUDGET_SPENT), why)
    state, warning = _counted(replace(state, budget=budget), failure, at)
    told = f"; {course.told}" if course.told else ""
    reason = f"attempt {state.attempt} failed: {failure.cause}{told}"
    failures = budget.failures if course.backoff is None else course.backoff
    salt = f"{state.job}/{state.attempt}"
    delay = backoff_delay(failures + course.ahead, policy, salt=salt)
    if failure.charge is Charge.PREEMPTIONS:
        delay = max(delay, policy.corroboration)
    if delay <= 0:
        state, decisions = proceed(state, reason, at, policy)
    else:
        state, decisions = back_off(state, delay, reason, at)
    return state, (*decisions, *warning)


def _counted(
    state: JobState, failure: Failure, at: float
) -> tuple[JobState, tuple[TellLivelock, ...]]:
    """Count a failure that repeats although new checkpoints come between, and tell when it is
    due."""
    if failure.charge is not Charge.RESTARTS:
        return state, ()
    before, after = state.livelock, state.livelock.failed(failure)
    goodput = Goodput(at) if after.failure != before.failure else state.goodput
    state = replace(state, livelock=after, goodput=goodput)
    if after.times == before.times or not after.is_due:
        return state, ()
    seconds = max(0.0, at - goodput.began)
    words, total = failure.root_cause, state.budget.total
    return state, (TellLivelock(words, after.times, total, seconds, goodput.productive),)


def _remembered(state: JobState, failure: Failure, limits: PhasePolicy) -> tuple[JobState, str]:
    """Returns the state that remembers the failure, and why it ends the job (empty: it does
    not)."""
    would = f"(signature {failure.signature}): it would come again"
    if failure.is_guess:
        rung = state.ladder.num_devices(limits) if failure.per_rung else None
        guess = Guess(failure.signature, failure.step, state.budget.highest, rung)
        why = f"the same failure came twice: {failure.cause} {would}"
        known = state.guesses.knows(guess)
        return replace(state, guesses=state.guesses.remember(guess)), why if known else ""
    is_compared = failure.compared and failure.remedy is None
    signature = failure.signature if is_compared else None
    budget = state.budget.failed(signature, limits)
    times = budget.repetitions(signature)
    why = f"the same failure came {times} times without a new checkpoint between {would}"
    too_often = 0 < budget.repetition_limit(limits) <= times
    return replace(state, budget=budget), why if too_often else ""
