"""Stopping a group that could go on: somebody asks for it, it hangs, or it makes way."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.decisions import DumpStacks, SignalWorkers
from supervisor.core.ending import ended_well
from supervisor.core.events import SaveMeasured, StopRequested, StopSource
from supervisor.core.liveness import Silence
from supervisor.core.moves import Outcome, drained
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import Drain, Group, Hang, JobState, Status

_SAVES = 3.0
"""Of how many saves a worker that is to save may take the time: one may be under way, the next one
waits for it, and a busy store is slower."""
_LAST_STEP = 5.0
"""Seconds for the step under way, and for the exit after the save."""

_WHO = {
    StopSource.SIGTERM: "told to stop (SIGTERM)",
    StopSource.SIGHUP: "told to stop (SIGHUP)",
    StopSource.PERSON: "stopped by a person",
    StopSource.PREEMPTION: "a preemption is announced",
}


def stop_requested(state: JobState, event: StopRequested, policy: RestartPolicy) -> Outcome:
    """Somebody asked the job to stop."""
    if event.at_once:
        shorter = min(policy.grace_period, policy.impatient_grace_period)
        policy = replace(policy, grace_period=shorter)
    if state.drain is not None:
        return _asked_again(state, state.drain, event, policy)
    begins = _when_to_save(state, event, policy)
    drain = Drain(event.source, event.at, state.budget.highest, begins)
    state = replace(state, drain=drain)
    group = state.group
    if group is None:
        # Without a group the job waits, or its phase is just beginning and will notice.
        waits = state.backoff is not None or state.placing is not None
        return drained(state, drain) if waits else (state, ())
    group = replace(group, saved=state.budget.highest)
    state = replace(state, group=group)
    if group.killing or begins is not None:
        return state, ()
    if group.world_size is None:  # asked as soon as it runs; but nobody waits for that for ever
        group = replace(group, deadline=event.at + policy.grace_period)
        return replace(state, group=group), ()
    return ask_to_stop(state, group, event.at, policy)


def _when_to_save(state: JobState, event: StopRequested, policy: RestartPolicy) -> float | None:
    """When a save must begin that is to be over when the machine goes; None: at once.

    A group that does not run as it should, or never saved, is given all the time there is.
    """
    if event.source is not StopSource.PREEMPTION or state.status is not Status.RUNNING:
        return None
    begins = _latest_beginning(event.at, state.longest_save, policy)
    return begins if begins is not None and begins > event.at else None


def _latest_beginning(
    announced: float, longest_save: float | None, policy: RestartPolicy
) -> float | None:
    """When a save must begin at the latest; None: too little is known."""
    if policy.preemption_notice is None or longest_save is None:
        return None
    return announced + policy.preemption_notice - _SAVES * longest_save - _LAST_STEP


def save_measured(state: JobState, event: SaveMeasured, policy: RestartPolicy) -> Outcome:
    """A save took that long; one that is to come may have to begin sooner for it."""
    if state.group is None or state.group.attempt != event.attempt:
        return state, ()
    longest, drain = max(event.seconds, state.longest_save or 0.0), state.drain
    if drain is not None and drain.begins is not None:
        latest = _latest_beginning(drain.at, longest, policy)
        if latest is not None:
            drain = replace(drain, begins=min(drain.begins, latest))
    return replace(state, longest_save=longest, drain=drain), ()


def ask_to_stop(state: JobState, group: Group, at: float, policy: RestartPolicy) -> Outcome:
    """Ask the group to stop, because the job is to stop."""
    drain, grace, saving = state.drain, policy.grace_period, state.longest_save
    assert drain is not None
    reason = _WHO[drain.source]
    if drain.source is StopSource.PREEMPTION and saving is not None:
        # Who announces it ends it; nothing is gained by killing a save that could get done.
        grace = max(grace, _SAVES * saving)
        reason += f"; the longest save so far took {saving:.1f} s"
    if drain.begins is not None:  # what was committed meanwhile is no sign that this save fits
        drain = replace(drain, begins=None, highest=state.budget.highest)
    ends = group.hang is not None or group.makes_way
    if group.lingers and not ends and ended_well(state, group, policy):
        group = replace(group, deadline=None)  # it was for survivors that nobody asks to stop
    return signal(replace(state, drain=drain), group, reason, at, policy, grace)


def make_way(state: JobState, group: Group, at: float, policy: RestartPolicy) -> Outcome:
    """Ask the group to stop, because a larger rung can be used."""
    group = replace(group, makes_way=True)
    reason = "a larger rung has been well for a while, and the next attempt uses it"
    return signal(state, group, reason, at, policy)


def signal(
    state: JobState,
    group: Group,
    reason: str,
    at: float,
    policy: RestartPolicy,
    grace: float | None = None,
) -> Outcome:
    """SIGTERM, and SIGKILL when the grace period (`grace`, where it is another than the policy's)
    is over; a deadline that is nearer stays."""
    deadline = at + (policy.grace_period if grace is None else grace)
    if group.deadline is not None and (group.hang is None or group.hang.asked):
        deadline = min(deadline, group.deadline)
    hang = replace(group.hang, asked=True) if group.hang is not None else None
    group = replace(group, deadline=deadline, hang=hang, saved=state.budget.highest)
    state = replace(state, status=Status.STOPPING, group=group)
    return state, (SignalWorkers(group.attempt, reason),)


def _asked_again(
    state: JobState, drain: Drain, event: StopRequested, policy: RestartPolicy
) -> Outcome:
    """Impatience shortens the grace period; an echo within a second does not.

    Nor does an announcement, nor the signal that it announced: that one says who stopped the job,
    and ends the wait for the end of the notice.
    """
    if event.source is StopSource.PREEMPTION:
        return state, ()
    group = state.group
    if drain.source is StopSource.PREEMPTION:
        waits = drain.begins is not None and group is not None and not group.killing
        state = replace(state, drain=Drain(event.source, event.at, drain.highest))
        return ask_to_stop(state, group, event.at, policy) if waits and group else (state, ())
    is_echo = event.at - drain.at <= 1.0 and not event.at_once
    if group is None or group.deadline is None or is_echo:
        return state, ()
    deadline = min(group.deadline, event.at + policy.impatient_grace_period)
    return replace(state, group=replace(group, deadline=deadline)), ()


def hung(
    state: JobState, group: Group, silence: Silence, at: float, policy: RestartPolicy
) -> Outcome:
    """The group is silent for too long: its stacks first, then it is asked to stop."""
    hang = Hang(silence.stage, silence.seconds)
    deadline = at + policy.stack_dump
    group = replace(group, hang=hang, deadline=deadline, saved=state.budget.highest)
    recovery = state.recovery.died(at - silence.seconds).spent("detect", at)
    state = replace(state, status=Status.STOPPING, group=group, recovery=recovery)
    reason = f"nothing was heard of it for {silence.seconds:.1f} s in stage {silence.stage}"
    return state, (DumpStacks(group.attempt, reason),)
