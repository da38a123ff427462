"""Stopping a group that could go on: somebody asks for it, it hangs, or it trains no more.

It trains no more if it is idle after its last step, or if its losses stay NaN or Inf.

How a group makes way for a larger rung is in `regrowing`.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from supervisor.core.decisions import CancelLaunch, DumpStacks
from supervisor.core.doing import (
    Alive,
    Asked,
    BackingOff,
    Cause,
    Hang,
    Idle,
    Killing,
    Launching,
    Lingering,
    MakesWay,
    NotFinite,
    Probing,
    Running,
    Stopping,
    Waiting,
    Workers,
)
from supervisor.core.ending import ended_well, kill, work_is_done
from supervisor.core.events import (
    LaunchCancelled,
    LossesNotFinite,
    NativeStacks,
    SaveMeasured,
    StopRequested,
    StopSource,
    WorkersIdle,
)
from supervisor.core.liveness import DEFAULT_DEADLINES, Silence
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import Drain, JobState
from supervisor.core.transitions import StepResult, drained, signal
from supervisor.diagnosis.rules import NOT_FINITE
from supervisor.protocol.messages import Stage

_SAVES = 3.0
"""Time to save before a stop, as a multiple of the longest save: one save may be under way, the
next waits for it, and a busy store is slower."""
_LAST_STEP = 5.0
"""Seconds for the step under way and for the exit after the save."""
_LOSSES = 10
"""How many losses in a row must be NaN or Inf, if no checkpoint is at stake: such a loss may come
from one bad batch, whose update the program leaves out."""
_SAVED_LOSSES = 3
"""The same once a step was committed since the first of them: each further one may replace a
checkpoint from before it."""
_NOTHING_UNDER_WAY = (None, Stage.TRAINING, Stage.FINISHING)
"""The stages in which a group may be idle because its work is done. Any other one has a deadline of
its own."""

_WHO = {
    StopSource.SIGTERM: "told to stop (SIGTERM)",
    StopSource.SIGHUP: "told to stop (SIGHUP)",
    StopSource.PERSON: "stopped by a person",
    StopSource.PREEMPTION: "a preemption is announced",
}


def stop_requested(state: JobState, event: StopRequested, policy: RestartPolicy) -> StepResult:
    """The job was asked to stop: stop at once, save later, or shorten the grace period."""
    if event.at_once:
        shorter = min(policy.grace_period, policy.impatient_grace_period)
        policy = replace(policy, grace_period=shorter)
    if state.drain is not None:
        return _asked_again(state, state.drain, event, policy)
    begins = _when_to_save(state, event, policy)
    drain = Drain(event.source, event.at, state.newest, begins, event.notice)
    state = replace(state, drain=drain)
    match state.doing:
        case BackingOff() | Probing() | Waiting():
            return drained(state, drain)
        case Launching():  # it is asked as soon as it runs; the deadline bounds the wait for that
            state = replace(state, doing=Launching(event.at + policy.grace_period))
            return state, (CancelLaunch(state.attempt, _WHO[drain.source]),)
        case Running() | Stopping() | Lingering() as group if begins is None:
            return ask_to_stop(state, group, event.at, policy)
        case _:  # `phase_begun` and `workers_gone` look at `drain` themselves
            return state, ()


def launch_cancelled(state: JobState, event: LaunchCancelled, policy: RestartPolicy) -> StepResult:
    """No worker of the attempt was started, because the job stops: end it at once."""
    group = state.doing
    if not isinstance(group, Launching) or state.attempt != event.attempt or not state.drains:
        return state, ()
    return kill(state, group, event.at, "its workers were not started", policy)


def _when_to_save(state: JobState, event: StopRequested, policy: RestartPolicy) -> float | None:
    """Returns when the save must begin to be complete before the machine goes; None: at once.

    It is at once too if the group does not run normally, if no save was measured yet, or if the
    source asks at the last moment (`StopRequested.notice`).
    """
    if event.notice is not None:
        return None
    if event.source is not StopSource.PREEMPTION or not isinstance(state.doing, Running):
        return None
    begins = _latest_beginning(event.at, state.longest_save, policy)
    return begins if begins is not None and begins > event.at else None


def grace_to_save(state: JobState, policy: RestartPolicy) -> float:
    """Returns the grace period in seconds of a group whose machine is about to go. The platform
    ends the machine itself: killing an unfinished save would gain nothing."""
    return max(policy.grace_period, _SAVES * (state.longest_save or 0.0))


def time_to_stop(longest_save: float | None, policy: RestartPolicy) -> float:
    """Returns how many seconds before the machine goes its workers must be asked to stop."""
    return max(policy.grace_period, _SAVES * (longest_save or 0.0)) + _LAST_STEP


def _latest_beginning(
    announced: float, longest_save: float | None, policy: RestartPolicy
) -> float | None:
    """Returns the latest time to begin a save; None: the notice or the save time is not known."""
    if policy.preemption_notice is None or longest_save is None:
        return None
    return announced + policy.preemption_notice - _SAVES * longest_save - _LAST_STEP


def save_measured(state: JobState, event: SaveMeasured, policy: RestartPolicy) -> StepResult:
    """Remember the longest save, and begin a planned save earlier if it needs more time."""
    if not isinstance(state.doing, Alive) or state.attempt != event.attempt:
        return state, ()
    longest, drain = max(event.seconds, state.longest_save or 0.0), state.drain
    if drain is not None and drain.begins is not None:
        latest = _latest_beginning(drain.at, longest, policy)
        if latest is not None:
            drain = replace(drain, begins=min(drain.begins, latest))
    return replace(state, longest_save=longest, drain=drain), ()


def ask_to_stop(
    state: JobState, group: Running | Stopping | Lingering, at: float, policy: RestartPolicy
) -> StepResult:
    """Ask the group to stop, because the job is to stop."""
    drain, grace, saving = state.drain, policy.grace_period, state.longest_save
    assert drain is not None
    reason = _WHO[drain.source]
    if drain.source is StopSource.PREEMPTION and saving is not None:
        grace = grace_to_save(state, policy)
        reason += f"; the longest save so far took {saving:.1f} s"
    if drain.begins is not None:  # checkpoints since the request are not the save asked for
        drain = replace(drain, begins=None, highest=state.newest)
    cause: Cause = Asked()
    if isinstance(group, Stopping | Lingering) and isinstance(group.cause, Hang | MakesWay | Idle):
        cause = group.cause
    elif isinstance(group, Lingering) and ended_well(state, group.workers, policy):
        group = replace(
            group, deadline=inf
        )  # that deadline was for survivors that are not asked to stop
    return signal(replace(state, drain=drain), group, reason, at, policy, cause, grace)


def _asked_again(
    state: JobState, drain: Drain, event: StopRequested, policy: RestartPolicy
) -> StepResult:
    """A second request shortens the grace period, unless it comes within a second of the first.

    An announced preemption never shortens it. Nor does the first signal after the announcement:
    it replaces the source of the stop, and a save that was planned for later begins now.
    """
    if event.source is StopSource.PREEMPTION:
        return state, ()
    group = state.doing
    if drain.source is StopSource.PREEMPTION:
        again = Drain(event.source, event.at, drain.highest)
        if drain.begins is None or not isinstance(group, Running | Stopping | Lingering):
            return replace(state, drain=again), ()
        again = replace(again, highest=state.newest)
        return ask_to_stop(replace(state, drain=again), group, event.at, policy)
    is_echo = event.at - drain.at <= 1.0 and not event.at_once
    if is_echo or not isinstance(group, Launching | Stopping | Lingering | Killing):
        return state, ()
    deadline = min(group.deadline, event.at + policy.impatient_grace_period)
    return replace(state, doing=replace(group, deadline=deadline)), ()


def hung(
    state: JobState, group: Running, silence: Silence, at: float, policy: RestartPolicy
) -> StepResult:
    """The group is silent for too long: dump its stacks; at the deadline it is asked to stop."""
    left = _left_to_exit(state, silence, policy.phases[state.phase])
    if left > 0.0:
        return replace(state, liveness=replace(state.liveness, expires=at + left)), ()
    hang = Hang(silence.stage, silence.seconds, state.newest)
    stopping = Stopping(group.workers, hang, deadline=at + policy.stack_dump)
    recovery = state.recovery.died(at - silence.seconds).spent("detect", at)
    state = replace(state, doing=stopping, recovery=recovery)
    who = _who_is_silent(group.workers)
    reason = f"nothing was heard of {who} for {silence.seconds:.1f} s in stage {silence.stage}"
    return state, (DumpStacks(state.attempt, reason),)


def _who_is_silent(workers: Workers) -> str:
    """Returns of whom nothing is heard, for people: of several ranks, those that have not ended."""
    if workers.world_size == 1:
        return "it"
    ranks = set(range(workers.world_size)).difference(each.rank for each in workers.exits)
    return f"rank {ranks.pop()}" if len(ranks) == 1 else "any rank"


def native_stacks(state: JobState, event: NativeStacks, policy: RestartPolicy) -> StepResult:
    """SIGTERM waits until the native stacks of a hung group are written: a worker that ended
    meanwhile would leave an empty file."""
    group, at = state.doing, event.at
    if not (isinstance(group, Stopping) and isinstance(group.cause, Hang)):
        return state, ()
    if group.cause.asked or event.attempt != state.attempt:
        return state, ()
    if event.written:
        deadline = min(group.deadline, at + policy.stack_dump)
    else:
        deadline = at + policy.native_stacks
    return replace(state, doing=replace(group, deadline=deadline)), ()


def workers_idle(state: JobState, event: WorkersIdle, policy: RestartPolicy) -> StepResult:
    """The group does nothing: if the success step is committed, its work is done, and it is asked
    to end once it had the time of FINISHING."""
    phase, group = policy.phases[state.phase], _running(state, event.attempt)
    budget = state.budget.told(None, trained=event.trained)
    if group is None or not work_is_done(budget, state.newest, phase):
        return state, ()
    if event.seconds < _time_to_exit(phase) or event.stage not in _NOTHING_UNDER_WAY:
        return state, ()
    reason = (
        f"step {state.newest} is committed, which completes the work, and the program did not exit "
        f"within {event.seconds:.0f} s in which it did nothing"
    )
    cause = Idle(event.seconds, state.newest)
    return signal(state, group, reason, event.at, policy, cause)


def _time_to_exit(phase: PhasePolicy) -> float:
    """Returns how many seconds a program that has done its work may take to exit."""
    return phase.deadlines.get(Stage.FINISHING, DEFAULT_DEADLINES[Stage.FINISHING])


def _left_to_exit(state: JobState, silence: Silence, phase: PhasePolicy) -> float:
    """Returns how many seconds are left for the exit: after the last step no further one is due."""
    is_done = work_is_done(state.budget, state.newest, phase, exited=True)
    if silence.stage is not Stage.TRAINING or not is_done:
        return 0.0
    return _time_to_exit(phase) - silence.seconds


def losses_not_finite(state: JobState, event: LossesNotFinite, policy: RestartPolicy) -> StepResult:
    """The losses are NaN or Inf: kill the group if they stay so.

    Nobody asks it to save: its state would replace a checkpoint from before. A loss that was never
    finite shows nothing, unless the last attempt ended for such losses.
    """
    group, failure = _running(state, event.attempt), state.last_failure
    went_on = failure is not None and failure.rule == NOT_FINITE
    if group is None or (event.finite is None and not went_on):
        return state, ()
    is_saved = state.saved_since(event.since, event.last)
    if event.times < (_SAVED_LOSSES if is_saved else _LOSSES):
        return state, ()
    cause = NotFinite(event.since, event.times, event.finite, event.before, state.newest)
    stopping = Stopping(group.workers, cause, deadline=event.at)
    state = replace(state, doing=stopping, recovery=state.recovery.died(event.at))
    reason = f"{event.times} losses in a row are NaN or Inf, from step {event.since} on"
    return kill(state, stopping, event.at, reason, policy)


def _running(state: JobState, attempt: int) -> Running | None:
    """Returns the group of `attempt` if it runs, and is not ending; else None."""
    group = state.doing
    return group if isinstance(group, Running) and state.attempt == attempt else None
