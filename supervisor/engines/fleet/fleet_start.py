"""An attempt that is being started: which host has which rank, and where the ranks meet.

The ranks meet at a port of the host of rank 0, which only that host can choose. So its agent is
asked for it first, and then all agents start their ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.verdicts import no_hosts_failure
from supervisor.engines.fleet.agent import QUESTIONS
from supervisor.engines.fleet.fleet import HostState, in_order
from supervisor.engines.fleet.fleet_attempt import FleetAttempt
from supervisor.engines.fleet.fleet_means import Means
from supervisor.engines.fleet.fleet_messages import Ports, ReservePorts, StartRanks
from supervisor.engines.fleet.launch_text import text_of
from supervisor.engines.launch import Launch, Part


class FleetStart:
    """The start of one attempt."""

    def __init__(self, means: Means, launch: Launch) -> None:
        self._means = means
        self.launch = launch
        self.began = means.clock.now()
        self.newest: int | None = None
        """The newest committed step."""
        self.cache: Mapping[str, str] = {}
        """The environment of the compilation cache."""
        self.coordinator: str | None = None
        """Where the ranks meet; None: the host of rank 0 has not found a port yet."""
        self._attempt = FleetAttempt(launch.attempt, ())
        self._slices: tuple[str, ...] = ()
        """The TPU slices of the hosts, if there are several, in the order of their ranks."""
        self._slices_port = 0
        """The port at which these slices meet, on the host of rank 0."""

    def ready_hosts(self) -> tuple[HostState, ...]:
        """Returns the host of each rank, as far as they are ready."""
        launch, fleet, now = self.launch, self._means.fleet, self._means.clock.now()
        ready = {host.node.id: host for host in fleet.ready(now)}
        nodes = self._chosen
        if not nodes:
            chosen = fleet.choose(launch.world_size, fleet.before, now)
            nodes = in_order([host.node.id for host in chosen], fleet.before)
        return tuple(ready[node] for node in nodes if node in ready)

    @property
    def _chosen(self) -> tuple[str, ...]:
        """The node of each rank, if a probe has found them and the core has put them in order."""
        return self.launch.units if self.launch.hosts else ()

    def why_not_ready(self) -> str:
        """Returns why hosts are missing, for people."""
        size, now = self.launch.world_size, self._means.clock.now()
        ready = {host.node.id for host in self.ready_hosts()}
        are = "is" if 1 in (len(ready), size) else "are"
        why = f"{len(ready)} of {size} host{'s' if size != 1 else ''} {are} ready"
        missing = next((node for node in self._chosen if node not in ready), None)
        if missing is not None:
            why += f"; host {missing}: {self._means.fleet.why_not_ready(missing, now)}"
        return why

    def lost_unit(self) -> str:
        """Returns a node that the core has chosen for the attempt, and that is known as lost;
        empty: there is none. The agents that were there have a moment to answer. Where there are
        none, as in a cluster that was started anew, a node that was never shown may join yet."""
        fleet, now = self._means.fleet, self._means.clock.now()
        if now - self.began < fleet.lost_after / QUESTIONS:
            return ""
        is_new = not any(map(self._is_found, fleet.hosts.values()))
        for node in self._chosen:
            host = fleet.of_node(node)
            if is_new and node not in fleet.shown:
                continue
            if fleet.is_gone(node, now, found=host is not None and self._is_found(host)):
                return node
        return ""

    def _is_found(self, host: HostState) -> bool:
        """Whether its agent ran before this leader began."""
        return host.is_placed and not self._means.is_ours(host.agent)

    def place(self, hosts: Sequence[HostState]) -> FleetAttempt:
        """Returns the attempt, whose ranks are on these hosts in this order."""
        fleet = self._means.fleet
        fleet.before = tuple(host.node.id for host in hosts)
        if self.launch.hosts:
            self.launch = replace(self.launch, units=fleet.before)
        slices = tuple(dict.fromkeys(host.node.slice for host in hosts))
        self._slices = slices if len(slices) > 1 else ()
        if self.launch.world_size == 1:
            self.coordinator = ""
        agents = tuple(host.agent for host in hosts)
        self._attempt = FleetAttempt(self.launch.attempt, agents)
        return self._attempt

    def start_all_ranks(self) -> None:
        """Tell all agents to start their ranks, as `start_ranks` does."""
        for agent in dict.fromkeys(self._attempt.agents):
            self.start_ranks(agent)

    def start_ranks(self, agent: str) -> None:
        """Tell an agent to start its ranks, if the place where they meet is known; else ask the
        agent of rank 0 for it."""
        means, attempt = self._means, self._attempt
        epoch, number = means.lead.epoch, attempt.number
        if self.coordinator is None:
            if agent == attempt.agents[0]:
                means.send(agent, ReservePorts(epoch, number, self._num_ports))
            return
        part = Part(attempt.ranks_of(agent), self.coordinator)
        if self._slices:
            part = replace(
                part,
                num_slices=len(self._slices),
                slice_number=self._slices.index(means.fleet.hosts[agent].node.slice),
                slices_port=self._slices_port,
            )
        text = text_of(self.launch, part)
        means.send(agent, StartRanks(epoch, number, text, self.newest, self.cache))

    def note_ports(self, agent: str, report: Ports) -> Failure | None:
        """The agent of rank 0 has found ports: start all ranks. Returns why that cannot be."""
        attempt = self._attempt
        if self.coordinator is not None or report.attempt != attempt.number:
            return None
        if agent != attempt.agents[0]:
            return None
        if len(report.ports) < self._num_ports:
            return no_hosts_failure(report.problem)
        address = self._means.fleet.hosts[agent].node.address
        host = f"[{address}]" if ":" in address else address
        self.coordinator = f"{host}:{report.ports[0]}"
        self._slices_port = report.ports[-1]
        self.start_all_ranks()
        return None

    @property
    def _num_ports(self) -> int:
        """How many ports the attempt needs on the host of rank 0."""
        return 2 if self._slices else 1
