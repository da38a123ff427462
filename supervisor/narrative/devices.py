"""What is told of devices, hosts and rungs: each change of the rung is to be explained."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.core.decisions import ProbeDevices, StartWorkers
from supervisor.core.events import DevicesProbed, QuarantineCleared, RungCompileFailed
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.narrative.line import MAIN, Line, budget_used, count
from supervisor.ports import Transition


def where(start: StartWorkers, policy: RestartPolicy) -> str:
    """On what an attempt is started; nothing where that goes without saying."""
    phase = policy.phases[start.phase]
    if start.num_devices is None or not phase.rungs or start.num_devices == phase.rungs[0]:
        return ""
    units = f"{unit(phase)}s {', '.join(start.units)}"
    return f" on {start.num_devices} of {phase.rungs[0]} devices ({units})"


def look(decision: ProbeDevices, policy: RestartPolicy) -> str:
    """That devices are looked at."""
    phase = policy.phases[decision.phase]
    which = "all" if decision.units is None else ", ".join(decision.units)
    return f"looking at the {unit(phase)}s ({which}): {decision.reason}"


def probed(t: Transition, event: DevicesProbed, policy: RestartPolicy) -> Iterator[Line]:
    """What a look found, and what the rung is from now on."""
    before, after = t.before, t.after
    if before == after and not t.decisions:
        return
    phase = policy.phases[before.phase]
    if event.problem is not None:
        yield Line(MAIN, f"the devices could not be looked at: {event.problem}", "warning")
    for bad in event.bad:
        kept = f"; in quarantine for {policy.quarantine_for / 60:g} min" if bad.found else ""
        yield Line(MAIN, f"{unit(phase)} {bad.unit}: {bad.reason}{kept}", "warning")
    if event.problem is None and before.placing is not None:
        well = len(event.healthy)
        yield Line(MAIN, f"{well} of {count(len(phase.units), unit(phase))} are well")
    if after.budget != before.budget:
        blame = "the devices are not to blame"
        if event.problem is not None:
            blame = "whether the devices are to blame is not known, so the failure is charged"
        yield Line(MAIN, f"{blame}: {budget_used(after, policy)}")
    old, new = before.ladder.num_devices(phase), after.ladder.num_devices(phase)
    if old != new and old is not None and new is not None:
        how = "shrinks" if new < old else "grows"
        yield Line(MAIN, f"the job {how} from {old} to {new} devices", "warning")
    since = after.ladder.larger_since
    if since is not None and before.ladder.larger_since is None:
        yield Line(MAIN, "a larger rung is there again: it is watched for a while")


def rung_compile_failed(
    t: Transition, event: RungCompileFailed, policy: RestartPolicy
) -> Iterator[Line]:
    """That a rung is out of use."""
    if t.before != t.after:
        text = f"the rung of {event.num_devices} devices is struck from the ladder: {event.reason}"
        yield Line(MAIN, text, "warning")


def quarantine_cleared(
    t: Transition, event: QuarantineCleared, policy: RestartPolicy
) -> Iterator[Line]:
    """That units may be used again."""
    which = ", ".join(event.units) or "all"
    yield Line(MAIN, f"quarantine cleared by a person: {which}")


def unit(phase: PhasePolicy) -> str:
    """What the phase's units are."""
    return "host" if phase.workers_are_units else "device"
