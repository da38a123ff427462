"""Back up the ladder while a smaller attempt runs: at a checkpoint it makes way for a larger rung.

    Ladder.begin_to_look -> (timer) look_for_more -> ProbeDevices -> DevicesProbed -> spares_probed
    -> the larger rung stays well for a while -> CheckpointCommitted -> make_way -> SignalWorkers

Then the group ends as any other one does, see `ending`; nothing is charged, and the next attempt
takes the largest rung that a look at the devices finds, see `capacity_check`.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.capacity_check import evidence, usable
from supervisor.core.doing import MakesWay, Running
from supervisor.core.events import CheckpointCommitted, DevicesProbed
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.core.transitions import StepResult, look, signal, tell_stages


def look_for_more(state: JobState, at: float, policy: RestartPolicy) -> StepResult:
    """Look at the units that the running attempt does not use."""
    phase = policy.phases[state.phase]
    quarantine = state.quarantine.expired(at)
    taken = {*state.ladder.units(phase), *quarantine.units}
    spare = tuple(unit for unit in phase.units if unit not in taken)
    ladder = replace(state.ladder, look_at=at + policy.regrow_interval)
    state = replace(state, quarantine=quarantine, ladder=ladder)
    if not spare:
        return state, ()
    reason = f"whether more than {state.ladder.num_devices(phase)} devices can be used again"
    return look(state, spare, reason)


def spares_probed(state: JobState, event: DevicesProbed, policy: RestartPolicy) -> StepResult:
    """What a look at the spare units found: since when a larger rung could be used."""
    state = evidence(state, event, policy)
    phase, ladder = policy.phases[state.phase], state.ladder
    if ladder.look_at is None or event.problem is not None:
        return state, ()
    units = usable(state, {*event.healthy, *ladder.units(phase)})
    placement = ladder.place(phase, units)
    larger = placement is not None and placement.num_devices > (ladder.num_devices(phase) or 0)
    since = ladder.larger_since if ladder.larger_since is not None else event.at
    return replace(state, ladder=replace(ladder, larger_since=since if larger else None)), ()


def checkpoint_committed(
    state: JobState, event: CheckpointCommitted, policy: RestartPolicy
) -> StepResult:
    """A checkpoint is progress, and the moment at which an attempt can make way."""
    if event.phase != state.phase:
        return state, ()
    before, state = state, state.committed(event.step, event.at)
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


def _make_way(state: JobState, group: Running, at: float, policy: RestartPolicy) -> StepResult:
    """Ask the group to stop, because a larger rung can be used."""
    reason = "a larger rung has been well for a while, and the next attempt uses it"
    return signal(state, group, reason, at, policy, MakesWay(state.newest))
