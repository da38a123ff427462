"""Renders events about devices, hosts and rungs, and explains each change of the rung."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from supervisor.core.decisions import ProbeDevices, StartWorkers
from supervisor.core.doing import Doing, Probing, Waiting
from supervisor.core.events import (
    BadUnit,
    DeviceFoundWrong,
    DevicesProbed,
    QuarantineCleared,
    RungCompileFailed,
)
from supervisor.core.exit_codes import ExitCode
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.core.state import JobState, Status
from supervisor.narrative.event_line import Line, budget_keys, budget_used, count, job_event
from supervisor.ports import Transition

_LIFTED = "or until `supervise quarantine clear MODEL_DIR`"
"""How a quarantine ends early."""


def where(start: StartWorkers, policy: RestartPolicy) -> str:
    """Returns the devices of an attempt, as the end of a sentence; empty on the full rung, and if
    the number of devices is not known."""
    phase = policy.phases[start.phase]
    if start.num_devices is None or not phase.rungs or start.num_devices == phase.rungs[0]:
        return ""
    units = f"{unit(phase)}s {', '.join(start.units)}"
    return f" on {start.num_devices} of {phase.rungs[0]} devices ({units})"


def probing_lines(decision: ProbeDevices, t: Transition, policy: RestartPolicy) -> Iterator[Line]:
    """Yields the line that devices are being probed; none while the job waits for more of them and
    probes again and again, which it has told."""
    looks = t.after.doing
    if isinstance(looks, Probing) and looks.short_since is not None:
        return
    phase = policy.phases[decision.phase]
    which = "all" if decision.units is None else ", ".join(decision.units)
    text = f"probing the {unit(phase)}s ({which}): {decision.reason}"
    units = list(decision.units) if decision.units is not None else None
    yield job_event("devices-probing", text, units=units, reason=decision.reason)


def found_wrong(t: Transition, event: DeviceFoundWrong, policy: RestartPolicy) -> Iterator[Line]:
    """Yields the line about a unit that the workers have found to compute wrongly."""
    if t.before != t.after:
        yield _bad(BadUnit(event.unit, event.reason), policy.phases[t.before.phase], policy)


def _bad(bad: BadUnit, phase: PhasePolicy, policy: RestartPolicy) -> Line:
    minutes = f"{policy.quarantine_for / 60:g} min"
    kept = f"; in quarantine for {minutes}, {_LIFTED}" if bad.found else ""
    return job_event(
        "device-bad",
        f"{unit(phase)} {bad.unit}: {bad.reason}{kept}",
        "warning",
        unit=bad.unit,
        reason=bad.reason,
        found=bad.found,
        seconds=policy.quarantine_for if bad.found else None,
    )


def probed(t: Transition, event: DevicesProbed, policy: RestartPolicy) -> Iterator[Line]:
    """Yields the lines about the result of a probe, and about the rung that follows from it."""
    before, after = t.before, t.after
    if before == after and not t.decisions:
        return
    phase = policy.phases[before.phase]
    if event.problem is not None:
        text = f"the probe of the devices failed: {event.problem}"
        yield job_event("devices-not-probed", text, "warning", reason=event.problem)
    was = before.doing
    told = was.missing if isinstance(was, Probing) else ()
    news = [bad for bad in event.bad if bad.found or bad.unit not in told]
    for bad in news:
        yield _bad(bad, phase, policy)
    waits = after.doing if isinstance(after.doing, Waiting) else None
    is_same = waits is not None and _is_same(was, waits) and not news
    is_known = event.problem is None and event.obstacle is None
    if is_known and before.capacity_check is not None and not is_same:
        whole = phase.num_units
        healthy = min(len(event.healthy), whole)
        are = "is" if 1 in (healthy, whole) else "are"
        text = f"{healthy} of {count(whole, unit(phase))} {are} healthy"
        if spares := len(event.healthy) - healthy:
            text += f", and {spares} more"
        if kept := [each for each in event.healthy if each in after.quarantine.units]:
            is_one = len(kept) == 1
            which = unit(phase) if is_one else f"{unit(phase)}s"
            text += f", but {which} {', '.join(kept)} {'is' if is_one else 'are'} in quarantine"
        units = list(event.healthy)
        yield job_event("devices-probed", text, units=units, num_units=whole)
    if after.budget != before.budget:
        blame = "the probe found the devices healthy, so the failure is charged"
        if event.problem is not None:
            blame = "the probe failed, so the failure is charged"
        text = f"{blame}: {budget_used(after, policy)}"
        yield job_event("budget-used", text, **budget_keys(after, policy))
    yield from _rung_changed(before, after, phase, event)
    since = after.ladder.larger_since
    if since is not None and before.ladder.larger_since is None:
        text = "enough devices for a larger rung are healthy again: the job waits, then uses it"
        yield job_event("larger-rung-seen", text)


def _rung_changed(
    before: JobState, after: JobState, phase: PhasePolicy, event: DevicesProbed
) -> Iterator[Line]:
    old, new = before.ladder.num_devices(phase), after.ladder.num_devices(phase)
    if old is None or new is None or old == new:
        return
    text = f"the job {'shrinks' if new < old else 'grows'} from {old} to {new} devices"
    left = [each for each in event.healthy if each not in after.quarantine.units]
    usable = len(left) * phase.rungs[0] // phase.num_units
    struck = {each.num_devices: each.reason for each in after.ladder.struck}
    reason = struck.get(usable) if new < usable < old else None
    if reason is not None:
        text += f", as {usable} are out of use: {reason}"
    elif new < usable < old and usable not in phase.rungs:
        rungs = ", ".join(map(str, phase.rungs))
        text += f", as its ladder has no {usable} (only {rungs}; `supervise validate` says why)"
    yield job_event(
        "rung-changed",
        text,
        "warning",
        before=old,
        num_devices=new,
        healthy=usable,
        rungs=list(phase.rungs),
        reason=reason,
    )


def blamed(t: Transition, policy: RestartPolicy) -> Iterator[Line]:
    """Yields the line that a host is not used for a while, because it had the root cause of too
    many failures."""
    phase = policy.phases[t.before.phase]
    for entry in t.after.quarantine.entries:
        if entry not in t.before.quarantine.entries:
            yield _bad(BadUnit(entry.unit, entry.reason), phase, policy)


def _is_same(before: Doing, waits: Waiting) -> bool:
    """Whether a job that waits for units misses the same ones as at the probe before."""
    if not isinstance(before, Probing) or before.short_since is None:
        return False
    return before.missing == waits.missing


def missing_units(
    transitions: Iterable[Transition], state: JobState, phase: PhasePolicy
) -> Mapping[str, str]:
    """Returns the units of the phase that the last probe of each did not see, and why.

    Units that the running attempt uses are not among them.
    """
    found: dict[str, str] = {}
    for event in (t.event for t in transitions):
        if isinstance(event, DevicesProbed):
            found |= {bad.unit: bad.reason for bad in event.bad if not bad.found}
            found = {name: why for name, why in found.items() if name not in event.healthy}
    used = state.ladder.units(phase) if state.status is Status.RUNNING else ()
    return {
        name: found[name] for name in phase.units or found if name in found and name not in used
    }


def obstacle_seen(
    transitions: Iterable[Transition], state: JobState, phase: PhasePolicy
) -> str | None:
    """Returns what kept all units from being used when they were last probed, or some of them until
    a person mends them, if the job still waits for that, or has ended by it; None: nothing."""
    events = (t.event for t in transitions)
    last = next((each for each in reversed([*events]) if isinstance(each, DevicesProbed)), None)
    is_short = state.capacity_check is not None or state.status is Status.FAILED
    if last is None or not is_short:
        return None
    if last.obstacle is not None:
        return f"no {unit(phase)} can be used: {last.obstacle.reason}"
    return f"not used: {last.unfit.reason}" if last.unfit is not None else None


def capacity_advice(t: Transition, policy: RestartPolicy) -> str | None:
    """Returns the advice for a job that ends for lack of units; None: this transition does not end
    it for that, or no unit can be named."""
    ends = (ExitCode.NO_CAPACITY, ExitCode.INVALID_CONFIG)
    if not isinstance(t.event, DevicesProbed) or t.after.exit_code not in ends:
        return None
    if t.event.obstacle is not None:
        return t.event.obstacle.advice
    if t.event.unfit is not None:
        return f"{t.event.unfit.advice}; then run the same command again"
    phase, kept = policy.phases[t.before.phase], t.after.quarantine.units
    gone = [bad.unit for bad in t.event.bad if bad.unit not in kept]
    if not gone and not kept:
        return None
    kind = unit(phase)
    parts = [f"have {kind} {', '.join(gone)} checked, repaired or replaced"] if gone else []
    if kept:
        names = ", ".join(sorted(kept))
        parts.append(f"clear {kind} {names}, if healthy again, by `supervise quarantine clear`")
    return (
        f"capacity is lacking: {'; '.join(parts)}; then run the same command again. To go on with "
        "less, lower trainer.init.autorestart.min_num_devices"
    )


def rung_compile_failed(
    t: Transition, event: RungCompileFailed, policy: RestartPolicy
) -> Iterator[Line]:
    """Yields the line that a rung is not used any more."""
    if t.before != t.after:
        text = f"the rung of {event.num_devices} devices is disabled: {event.reason}"
        num_devices, reason = event.num_devices, event.reason
        yield job_event("rung-disabled", text, "warning", num_devices=num_devices, reason=reason)


def quarantine_cleared(
    t: Transition, event: QuarantineCleared, policy: RestartPolicy
) -> Iterator[Line]:
    """Yields the line that a person has taken units out of quarantine."""
    which = ", ".join(event.units) or "all"
    text = f"quarantine cleared by a person: {which}"
    yield job_event("quarantine-cleared", text, units=list(event.units))


def full_rung(phase: PhasePolicy) -> int | None:
    """Returns the number of devices of the full rung; None: not known."""
    return phase.rungs[0] if phase.rungs else None


def unit(phase: PhasePolicy) -> str:
    """Returns the word for one of the phase's units: `host` or `device`."""
    return "host" if phase.workers_are_units else "device"
