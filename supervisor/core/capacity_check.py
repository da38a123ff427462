"""What the next attempt runs on: as it was, as a look at the devices tells, or nothing yet.

    go_on -> ProbeDevices -> DevicesProbed -> the largest rung that is there -> the next attempt
                                           -> too few: wait, and look again; in the end exit 69

Devices are looked at where there is a reason to: a failure points at them, some were missing or in
quarantine when they were last known. Nothing is concluded from a look that found nothing out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from supervisor.core.decisions import Wait
from supervisor.core.doing import Failed, Suspicion, Waiting
from supervisor.core.events import DevicesProbed
from supervisor.core.exit_codes import ExitCode
from supervisor.core.ladder import Placement
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState
from supervisor.core.transitions import StepResult, finish, probe, rested
from supervisor.diagnosis.failure import Failure


def suspect(
    state: JobState, failure: Failure, adjustable: tuple[str, ...], at: float, policy: RestartPolicy
) -> StepResult:
    """A failure points at the devices: they are looked at before it is charged."""
    reason = f"attempt {state.attempt} failed: {failure.cause}"
    return probe(state, reason, at, policy, suspicion=Suspicion(failure, adjustable))


def evidence(state: JobState, event: DevicesProbed, policy: RestartPolicy) -> JobState:
    """What is known of the units after a look at them."""
    quarantine = state.quarantine.expired(event.at)
    for bad in event.bad:
        if bad.found:
            until = event.at + policy.quarantine_for
            quarantine = quarantine.add(bad.unit, bad.reason, until)
    return replace(state, quarantine=quarantine)


def lost(state: JobState, event: DevicesProbed, policy: RestartPolicy) -> tuple[str, ...]:
    """The units of the last attempt that are not as they should be."""
    in_use = state.ladder.units(policy.phases[state.phase])
    return tuple(bad.unit for bad in event.bad if bad.unit in in_use)


def usable(state: JobState, found: Collection[str]) -> frozenset[str]:
    """The units that may be used, of those that were found well."""
    return frozenset(found) - state.quarantine.units


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why the next attempt cannot start yet, and how many seconds more may be waited for that."""

    reason: str
    left: float


def choose(
    state: JobState, found: Collection[str], since: float, at: float, policy: RestartPolicy
) -> Placement | Shortage:
    """What the next attempt runs on, if these units were found well and there have been too few
    since the time `since`."""
    phase, units = policy.phases[state.phase], usable(state, found)
    placement = state.ladder.place(phase, units)
    if placement is None:
        return Shortage(_short(state, phase, units), _left(policy.wait_for_capacity, since, at))
    before = state.ladder.num_devices(phase)
    left = _left(policy.wait_for_replacement, since, at)
    if before is not None and placement.num_devices < before and left > 0:
        reason = (
            f"{len(units)} of {len(phase.units)} {_unit(phase)}s are usable: waiting for a "
            f"replacement before it goes on with {placement.num_devices} devices"
        )
        return Shortage(reason, left)
    return placement


def _left(limit: float, since: float, at: float) -> float:
    """The seconds that are left at the time `at` of a limit that began at `since`; 0 also for so
    few that `at` and they are `at`: a deadline there would come again and again."""
    left = limit - (at - since)
    return left if at + left > at else 0.0


def settle(state: JobState, placement: Placement, at: float, policy: RestartPolicy) -> JobState:
    """The state on that rung."""
    phase = policy.phases[state.phase]
    soon = 10 * policy.regrow_after
    return replace(state, ladder=state.ladder.moved(phase, placement, at, soon))


def wait(
    state: JobState,
    reason: str,
    shortage: Shortage,
    since: float,
    at: float,
    policy: RestartPolicy,
) -> StepResult:
    """Wait for units before the attempt that `reason` calls for, and look again; or give up."""
    if shortage.left <= 0:
        why = f"{shortage.reason}; run the same command again later"
        return finish(state, Failed(ExitCode.NO_CAPACITY), why)
    seconds = min(policy.look_interval, shortage.left)
    waiting = Waiting(reason, at + seconds, since)
    return replace(rested(state, at), doing=waiting), (Wait(seconds, shortage.reason),)


def _short(state: JobState, phase: PhasePolicy, units: Collection[str]) -> str:
    struck = {each.num_devices for each in state.ladder.struck}
    least = min((n for n in phase.rungs if n not in struck), default=None)
    if least is None:
        return "the program can be compiled for no rung of the ladder"
    per_unit = phase.rungs[0] // len(phase.units)
    text = f"no capacity: {len(units)} of {len(phase.units)} {_unit(phase)}s are usable"
    if len(units) * per_unit >= least:
        return f"{text}, but make up no rung of the ladder that is in use"
    return f"{text}, and the smallest rung needs {least // per_unit}"


def _unit(phase: PhasePolicy) -> str:
    return "host" if phase.workers_are_units else "device"
