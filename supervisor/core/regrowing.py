"""Regrow: an attempt on a smaller rung makes way for a larger one, after a checkpoint.

    running.workers_started -> Ladder.begin_to_look -> (timer) look_for_more -> ProbeDevices
    -> DevicesProbed -> spares_probed -> the larger rung stays usable for a while
    -> CheckpointCommitted -> checkpoint_committed -> SignalWorkers

Then the group ends like any other (see `ending`). Nothing is charged, and the next attempt runs on
the largest rung that a probe finds (see `capacity_check`).
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.capacity_check import note_seen, quarantine_bad_units, usable
from supervisor.core.doing import MakesWay, Running
from supervisor.core.events import CheckpointCommitted, DevicesProbed
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.core.transitions import StepResult, probe_units, signal, tell_stages


def look_for_more(state: JobState, at: float, policy: RestartPolicy) -> StepResult:
    """Probe the units that the running attempt does not use."""
    phase = policy.phases[state.phase]
    quarantine = state.quarantine.expired(at)
    taken = {*state.ladder.units(phase), *quarantine.units}
    spare = tuple(unit for unit in phase.units if unit not in taken)
    ladder = replace(state.ladder, look_at=at + policy.regrow_interval)
    state = replace(state, quarantine=quarantine, ladder=ladder)
    if not spare and not phase.num_hosts:
        return state, ()
    reason = f"whether more than {state.ladder.num_devices(phase)} devices can be used again"
    return probe_units(state, spare or None, reason)


def spares_probed(state: JobState, event: DevicesProbed, policy: RestartPolicy) -> StepResult:
    """The spare units were probed: remember since when a larger rung has been usable."""
    state = note_seen(quarantine_bad_units(state, event, policy), event, policy)
    phase, ladder = policy.phases[state.phase], state.ladder
    if ladder.look_at is None or event.problem is not None:
        return state, ()
    units = usable(state, (*event.healthy, *ladder.units(phase)))
    placement = ladder.place(phase, units)
    larger = placement is not None and placement.num_devices > (ladder.num_devices(phase) or 0)
    since = ladder.larger_since if ladder.larger_since is not None else event.at
    return replace(state, ladder=replace(ladder, larger_since=since if larger else None)), ()


def checkpoint_committed(
    state: JobState, event: CheckpointCommitted, policy: RestartPolicy
) -> StepResult:
    """A checkpoint was committed: count the progress, and make way for a larger rung if one is
    due."""
    if event.phase != state.phase:
        return state, ()
    before, state = state, _with_commit(state, event)
    is_new = state is not before
    state, told = tell_stages(state, event.at, state.liveness.step) if is_new else (state, ())
    if not isinstance(state.doing, Running) or state.drain is not None:
        return state, told
    since = state.ladder.larger_since
    hold = policy.regrow_after * 2.0 ** min(state.ladder.flaps, 6)
    if since is None or event.at - since < hold:
        return state, told
    state, decisions = _make_way(state, state.doing, event.at, policy)
    return state, (*decisions, *told)


def _with_commit(state: JobState, event: CheckpointCommitted) -> JobState:
    return state.committed(event.step, event.at, new=event.new, epochs=event.epochs)


def _make_way(state: JobState, group: Running, at: float, policy: RestartPolicy) -> StepResult:
    """Ask the group to stop, because a larger rung can be used."""
    reason = "a larger rung has been well for a while, and the next attempt uses it"
    return signal(state, group, reason, at, policy, MakesWay(state.newest))
