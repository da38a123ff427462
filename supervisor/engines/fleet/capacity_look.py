"""Answers the probes of the core: which hosts can be used for the next attempt.

The answer waits for hosts that may still join, and for the probes of devices (`host_probes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from supervisor.core.events import BadUnit, DevicesProbed, Obstacle, Unfit
from supervisor.engines.fleet.fleet import HostState
from supervisor.engines.fleet.fleet_means import Means
from supervisor.engines.fleet.fleet_messages import Probed, ProbeHost
from supervisor.engines.fleet.host_probes import HostProbes
from supervisor.engines.launch import Launch

_MAX_NAMED = 8
"""Hosts that a message names for one reason."""
FIRST_JOIN = 30.0
JOIN = 5.0
"""Seconds to wait for hosts that are missing: until all were there once, and later, if some may
come. Before that, `wait_for_capacity` of the config limits the wait for hosts that the cluster does
not have."""


def cluster_advice(address: str) -> str:
    """Returns what a person should do if the cluster of a job that has run at `address` (auto: the
    one that its machine was in) is lost for good."""
    where, join = f"at {address}", f"--address={address}"
    if address == "auto":
        where, join = "at the same address", "--address=HOST:PORT"
    return (
        f"start a head again {where} (ray start --head), have the hosts join it (ray start {join}),"
        " then run the same command: the job goes on from its newest committed checkpoint, and only"
        " the steps after that are lost"
    )


def _unfit(hosts: Sequence[HostState]) -> Unfit:
    """Returns what people are told of these `hosts`, which only a person can make usable."""
    by_problem: dict[str, list[str]] = {}
    for host in hosts:
        by_problem.setdefault(host.problem, []).append(host.node.id)
    parts = (f"host {_names(names)}: {problem}" for problem, names in by_problem.items())
    advice = "; ".join(dict.fromkeys(host.remedy for host in hosts))
    return Unfit(len(hosts), "; ".join(parts), advice)


def _all_unfit(hosts: Sequence[HostState]) -> Obstacle:
    """Returns the obstacle that only a person can make these `hosts` usable, which are all."""
    told = _unfit(hosts)
    reason = f"no host can be used as it is set up: {told.reason}"
    return Obstacle(reason, f"{told.advice}; then run the same command again", lasts=True)


def _names(names: Sequence[str]) -> str:
    shown, more = names[:_MAX_NAMED], len(names) - _MAX_NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class _Probe:
    number: int
    size: int
    patient_until: float
    absent_until: float
    """Until when hosts are waited for that the cluster does not have, if all were never there, or
    for the cluster itself."""
    devices: HostProbes | None = None
    """The probes of the devices of the last attempt's hosts; None: nothing points at devices."""


class CapacityLook:
    """The probe that is not answered yet, if there is one."""

    def __init__(self, means: Means, wait_for_capacity: float) -> None:
        self._means = means
        self._wait_for_capacity = wait_for_capacity
        self._probe: _Probe | None = None
        self._was_full = False
        """Whether all hosts were there once."""

    def begin(self, number: int, size: int, suspect: Launch | None) -> None:
        """Look for `size` hosts. `suspect`: the last attempt, if its failure points at the
        devices."""
        now = self._means.clock.now()
        patience = JOIN if self._was_full else FIRST_JOIN
        absent = patience if self._was_full else min(patience, self._wait_for_capacity)
        devices = self._device_probes(suspect, number, now) if suspect is not None else None
        self._probe = _Probe(number, size, now + patience, now + absent, devices)
        for agent, command in devices.commands.items() if devices is not None else ():
            self._means.send(agent, command)
        self.answer()

    def cancel(self) -> None:
        """No answer is wanted any more."""
        self._probe = None

    def wanted(self, agent: str) -> ProbeHost | None:
        """Returns what an agent is to probe and has not; None: nothing."""
        devices = self._probe.devices if self._probe is not None else None
        return devices.wanted(agent) if devices is not None else None

    @property
    def probes_devices(self) -> bool:
        """Whether devices are being probed."""
        return self._probe is not None and self._probe.devices is not None

    def note(self, agent: str, report: Probed) -> None:
        """An agent has probed its devices."""
        if self._probe is not None and self._probe.devices is not None:
            self._probe.devices.note(agent, report)
            self.answer()

    def answer(self) -> None:
        """Post the answer, unless it is to wait."""
        probe, now, fleet = self._probe, self._means.clock.now(), self._means.fleet
        if probe is None:
            return
        devices = probe.devices
        if devices is not None and devices.waits({each.agent for each in fleet.ready(now)}, now):
            return
        if self._means.fleet.all_unfit(now):  # nothing changes by waiting
            self._probe = None
            self._means.post(self._answer_of(probe, (), now))
            return
        ready = self._staying(now)
        self._was_full |= len(ready) >= probe.size
        num_usable = sum(host.node.id not in fleet.left_out for host in ready)
        if num_usable < probe.size and now < probe.patient_until and self._expects_more(probe, now):
            return
        self._probe = None
        self._means.post(self._answer_of(probe, ready, now))

    def _answer_of(self, probe: _Probe, ready: tuple[HostState, ...], now: float) -> DevicesProbed:
        redact, devices = self._means.redact, probe.devices
        obstacle = self._obstacle(now)
        faulty = {each.unit: each for each in (devices.bad if devices is not None else ())}
        healthy = tuple(host.node.id for host in ready if host.node.id not in faulty)
        missing = (
            BadUnit(node, self._why_missing(node, now), found=False)
            for node in self._means.fleet.before
            if obstacle is None and node not in healthy and node not in faulty
        )
        bad = tuple(
            replace(each, reason=redact(each.reason)) for each in (*faulty.values(), *missing)
        )
        is_open = devices is not None and not bad and obstacle is None
        problem = devices.problem if devices is not None and is_open else None
        told = redact(problem) if problem is not None else None
        unfit = self._means.fleet.unfit(now) if obstacle is None else ()
        set_up = _unfit(unfit) if unfit else None
        return DevicesProbed(now, probe.number, healthy, bad, told, obstacle, set_up)

    def _obstacle(self, now: float) -> Obstacle | None:
        """Returns what keeps all hosts from being used; None: nothing does."""
        fleet, lead = self._means.fleet, self._means.lead
        if fleet.cluster_lost is None:
            unfit = fleet.all_unfit(now)
            return _all_unfit(unfit) if unfit else None
        why = self._means.redact(fleet.cluster_lost[1])
        return Obstacle(f"the cluster does not answer: {why}", cluster_advice(lead.address))

    def _device_probes(self, suspect: Launch, number: int, now: float) -> HostProbes:
        """Returns the probes of the devices of the last attempt's hosts."""
        fleet = self._means.fleet
        hosts = {host.agent: host.node.id for host in fleet.ready(now)}
        nodes = {agent: node for agent, node in hosts.items() if node in fleet.before}
        return HostProbes.of(suspect, number, self._means.lead.epoch, nodes, now)

    def _expects_more(self, probe: _Probe, now: float) -> bool:
        """Whether to wait for more hosts. Once all were there, a host that is lost is not waited
        for: how long a job waits for another one, `wait_for_replacement` says."""
        fleet, may_appear = self._means.fleet, now < probe.absent_until
        if fleet.cluster_lost is not None:
            return may_appear
        if self._was_full:
            return fleet.expects_more(now)
        # A host of the cluster is waited for until its agent has started, which takes a while
        return may_appear or not fleet.shown or fleet.expects_more(now)

    def _staying(self, now: float) -> tuple[HostState, ...]:
        """Returns the hosts that are ready and stay, as far as is known: previous members first."""
        fleet = self._means.fleet
        if fleet.cluster_lost is not None:
            return ()
        ready = fleet.choose(len(fleet.hosts), fleet.before, now)
        return fleet.in_whole_slices([host for host in ready if host.stays])

    def _why_missing(self, node: str, now: float) -> str:
        fleet = self._means.fleet
        host = fleet.of_node(node)
        if host is not None and host.stays and host.is_ready(now, fleet.lost_after):
            return f"other hosts of its TPU slice {host.node.slice} are missing"
        return self._means.redact(fleet.why_not_ready(node, now))
