"""Choose the units of the next attempt after a probe, or wait while there are too few.

    go_on -> ProbeDevices -> DevicesProbed -> the largest rung that is usable -> the next attempt
                                           -> too few: wait and probe again; in the end exit 69

Devices are probed only for a reason: a failure points at them, or some were missing or in
quarantine last time. A probe that found nothing out (`DevicesProbed.problem`) changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from supervisor.core.decisions import Wait
from supervisor.core.doing import Failed, Suspicion, Waiting
from supervisor.core.events import DevicesProbed, Obstacle
from supervisor.core.exit_codes import ExitCode
from supervisor.core.ladder import Placement
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState
from supervisor.core.transitions import StepResult, finish, probe, rested
from supervisor.diagnosis.failure import Failure

_FLAP_WINDOW = 10
"""To shrink again within so many times `regrow_after` of having grown counts as a flap."""


def suspect(
    state: JobState, failure: Failure, adjustable: tuple[str, ...], at: float, policy: RestartPolicy
) -> StepResult:
    """Probe the devices before a failure that points at them is charged."""
    reason = f"attempt {state.attempt} failed: {failure.cause}"
    return probe(state, reason, at, policy, suspicion=Suspicion(failure, adjustable))


def quarantine_bad_units(state: JobState, event: DevicesProbed, policy: RestartPolicy) -> JobState:
    """Returns the state with the units in quarantine that a probe found bad, but not those that
    it did not see."""
    quarantine = state.quarantine.expired(event.at)
    reasons = {bad.unit: bad.reason for bad in event.bad if bad.found}
    return replace(state, quarantine=quarantine.add(reasons, event.at + policy.quarantine_for))


def note_seen(state: JobState, event: DevicesProbed, policy: RestartPolicy) -> JobState:
    """Returns the state with the machines of a cluster that a probe found healthy: there may be
    more of them than the config expects."""
    if not policy.phases[state.phase].num_hosts or event.problem is not None:
        return state
    return replace(state, ladder=replace(state.ladder, seen=event.healthy))


def bad_units_in_use(
    state: JobState, event: DevicesProbed, policy: RestartPolicy
) -> tuple[str, ...]:
    """Returns the units of the last attempt that the probe found bad, or did not see."""
    in_use = frozenset(state.ladder.units(policy.phases[state.phase]))
    return tuple(bad.unit for bad in event.bad if bad.unit in in_use)


def usable(state: JobState, found: Iterable[str]) -> tuple[str, ...]:
    """Returns the units of `found` that are not in quarantine, each once and in their order."""
    kept = state.quarantine.units
    return tuple(unit for unit in dict.fromkeys(found) if unit not in kept)


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why the next attempt cannot start yet."""

    reason: str
    left: float
    """How many seconds are left to wait."""
    again: str = "later"
    """When a person can run the same command again, once no time is left."""


def choose(
    state: JobState,
    found: Collection[str],
    since: float,
    at: float,
    policy: RestartPolicy,
    obstacle: Obstacle | None = None,
) -> Placement | Shortage:
    """Returns what the next attempt runs on, or why it must wait.

    `found` are the healthy units; there have been too few since the time `since`. An `obstacle`
    keeps all of them from being used.
    """
    if obstacle is not None:
        left = _left(policy.wait_for_capacity, since, at)
        return Shortage(obstacle.reason, left, "once that has changed")
    phase, units = policy.phases[state.phase], usable(state, found)
    placement = state.ladder.place(phase, units)
    if placement is None:
        return Shortage(_short(state, phase, units), _left(policy.wait_for_capacity, since, at))
    before = state.ladder.num_devices(phase)
    left = _left(policy.wait_for_replacement, since, at)
    if before is not None and placement.num_devices < before and left > 0:
        reason = (
            f"{_how_many(phase, units)}: waiting for a replacement before it goes on with "
            f"{placement.num_devices} devices"
        )
        return Shortage(reason, left)
    return placement


def _left(limit: float, since: float, at: float) -> float:
    """Returns the seconds left at the time `at` of a limit that began at `since`.

    It is 0 too where adding them to `at` gives `at` in floating point: such a deadline would fire
    for ever.
    """
    left = limit - (at - since)
    return left if at + left > at else 0.0


def move_to_rung(
    state: JobState, placement: Placement, at: float, policy: RestartPolicy
) -> JobState:
    """Returns the state with the ladder on the rung of `placement`."""
    phase = policy.phases[state.phase]
    soon = _FLAP_WINDOW * policy.regrow_after
    return replace(state, ladder=state.ladder.moved(phase, placement, at, soon))


def wait(
    state: JobState,
    reason: str,
    shortage: Shortage,
    since: float,
    event: DevicesProbed,
    policy: RestartPolicy,
) -> StepResult:
    """Wait for units and probe again; end the job with NO_CAPACITY when no time is left, or with
    INVALID_CONFIG if only a person can mend the units that are missing.

    There have been too few since the time `since`, and `event` is the last probe.
    """
    if shortage.left <= 0:
        why, code = shortage.reason, ExitCode.NO_CAPACITY
        if event.unfit is not None:
            why = f"{why}; {event.unfit.reason}"
            if _would_suffice(state, event, event.unfit.number, policy):
                code = ExitCode.INVALID_CONFIG
        return finish(state, Failed(code), f"{why}; run the same command again {shortage.again}")
    seconds = min(policy.look_interval, shortage.left)
    missing = tuple(sorted(bad.unit for bad in event.bad if not bad.found))
    waiting = Waiting(reason, event.at + seconds, since, missing)
    return replace(rested(state, event.at), doing=waiting), (Wait(seconds, shortage.reason),)


def _would_suffice(
    state: JobState, event: DevicesProbed, unfit: int, policy: RestartPolicy
) -> bool:
    """Whether the usable units and so many `unfit` ones together make up a rung."""
    mended = tuple(f"unfit unit {number}" for number in range(unfit))
    units = (*usable(state, event.healthy), *mended)
    return state.ladder.place(policy.phases[state.phase], units) is not None


def _short(state: JobState, phase: PhasePolicy, units: Collection[str]) -> str:
    struck = {each.num_devices for each in state.ladder.struck}
    least = min((n for n in phase.rungs if n not in struck), default=None)
    if least is None:
        return "the program can be compiled for no rung of the ladder"
    per_unit = phase.rungs[0] // phase.num_units
    text = f"no capacity: {_how_many(phase, units)}"
    if len(units) * per_unit >= least:
        rungs = ", ".join(str(n) for n in phase.rungs if n not in struck)
        return f"{text}, but make up no rung of the ladder that is in use ({rungs} devices)"
    return f"{text}, and the smallest rung needs {least // per_unit}"


def _how_many(phase: PhasePolicy, units: Collection[str]) -> str:
    """Returns how many of the units of a phase are usable, for people."""
    whole = phase.num_units
    unit = "host" if phase.workers_are_units else "device"
    are = "is" if 1 in (len(units), whole) else "are"
    return f"{len(units)} of {whole} {unit}{'s' if whole != 1 else ''} {are} usable"
