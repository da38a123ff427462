"""How the leader acts: the commands that agents get, and what the core and people are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from supervisor.core.events import Event, Noticed
from supervisor.engines.fleet.fleet import Fleet
from supervisor.engines.fleet.fleet_messages import Command, Lead, encoded
from supervisor.engines.fleet.transport import Transport
from supervisor.engines.host_port import MainLoop
from supervisor.host.notice import Notice
from supervisor.ports import Clock


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads, and what agents must agree with."""

    epoch: int
    version: str
    lost_after: float
    name: str
    """The beginning of the names of the agents that this leader places: unique to it."""
    owner_file: str = ""
    """See `Lead`."""
    token: str | None = None
    """The token in the owner file; None: hosts are not compared by it."""
    lost_after_before: float = 0.0
    """The longest `lost_after` of the leaders before whose answers may still hold
    (`History.longest_lost_after`)."""
    announcer: str = "none"
    """See `Lead`."""
    address: str = "auto"
    """`init.hosts.address` of the config."""
    config: str = ""
    """The digest of the config of this host (`gang_config`); empty: hosts are not compared by
    it."""
    began: float | None = None
    """Since when no other leader can have answered an agent: model_dir is ours since then, or its
    lease was not renewed for long before that; None: since the engine was made."""


@dataclass(slots=True)
class Means:
    """What the parts of the leader share."""

    transport: Transport
    reactor: MainLoop
    clock: Clock
    lead: Leadership
    fleet: Fleet
    redact: Callable[[str], str]
    _placed: int = 0
    """How many agents this leader has placed."""

    def send(self, agent: str, command: Command) -> None:
        """Send a command to an agent. Safe in any thread."""
        self.transport.send(agent, encoded(command))

    def place_agents(self) -> None:
        """Place agents on the nodes that need one."""
        for node in self.fleet.to_place(self.clock.now()):
            self._placed += 1
            agent = f"{self.lead.name}-{self._placed}"
            self.fleet.asked_for(agent, node)
            self.transport.place(agent, node.id)

    def introduce(self, agent: str) -> None:
        """Tell an agent who leads."""
        lead = self.lead
        told = lead.version, lead.lost_after, lead.owner_file, lead.announcer
        self.send(agent, Lead(lead.epoch, *told))

    def is_ours(self, agent: str) -> bool:
        """Whether this leader has placed the agent, and not one before it."""
        return agent.startswith(f"{self.lead.name}-")

    def host_of(self, agent: str) -> str:
        """Returns the name of an agent's host, for people."""
        host = self.fleet.hosts.get(agent)
        return host.node.id if host is not None else agent

    def post(self, event: Event) -> None:
        """Tell the core."""
        self.reactor.post(event)

    def notice(self, told: Notice) -> None:
        """Tell people."""
        self.post(Noticed(self.clock.now(), told))

    def mention(self, told: Notice) -> None:
        """Tell those who want to know everything."""
        self.post(Noticed(self.clock.now(), told, routine=True))
