"""The port between the leader and whatever reaches the agents on other hosts.

`FleetEngine` sends and gets payloads (bytes) by this port alone: it knows neither Ray nor sockets.
An implementation knows nothing of payloads. It may lose, delay or double them, as networks do: the
fence does not depend on it. It must never change one, or deliver it to another agent.

An *agent* is a process (`python -m supervisor.engines.fleet.agent_process FD`) on a *node*. FD is
one end of a stream socket pair, on which each payload is a frame (`payload_frames.py`). Its parent,
a part of the implementation, relays payloads and nothing else. When the socket is closed, or the
parent dies, the agent ends, and its guard kills what it has started. A relay whose leader is gone
need not end the agent: the fence does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that an agent can be placed on, as the cluster shows it."""

    id: str
    """Names the machine, for people and for the quarantine. It is its own for as long as it is in
    the cluster, and the same when it comes back, if the cluster can tell."""
    address: str
    """The address at which ranks on other nodes reach a port of this one."""
    slice: str = ""
    """The TPU slice that it is a part of; empty: none."""
    place_in_slice: int | None = None
    """Its index among the hosts of its slice; None: not in a slice."""
    draining: str = ""
    """Why the cluster will take it away soon, for people; empty: it will not."""


class Listener(Protocol):
    """What the transport calls, always in the main loop."""

    def nodes_seen(self, nodes: tuple[Node, ...]) -> None:
        """All nodes that are alive, in any order: once the cluster answers, and at each change."""
        ...

    def agent_placed(self, agent: str, node: str) -> None:
        """The agent runs on the node, and payloads reach it.

        Called for each agent that `place` has asked for, and once after `begin` for each agent that
        an earlier leader of this job has left.
        """
        ...

    def agent_lost(self, agent: str, why: str, remedy: str = "") -> None:
        """The agent cannot be reached any more for certain, or could not be placed. `remedy` is
        what a person does if none can run on its node as that is set up; empty: one may.

        Called at most once for an agent; it is never placed or heard again. It proves nothing about
        the processes that the agent has started.
        """
        ...

    def heard(self, agent: str, payload: bytes) -> None:
        """The agent has sent a payload. Those of one agent come in the order in which they were
        sent."""
        ...

    def cluster_lost(self, why: str) -> None:
        """The cluster does not answer: no node is seen, and nobody is heard, until `nodes_seen` is
        called again. Agents that were placed may still run."""
        ...


class Transport(Protocol):
    """Reaches nodes and agents. No method blocks; all but `send` are called in the main loop."""

    def begin(self, listener: Listener) -> None:
        """Begin to look for nodes and agents, and tell `listener`. Called once, first."""
        ...

    def place(self, agent: str, node: str) -> None:
        """Start an agent on the node. `agent` is a new name of letters, digits and hyphens, unique
        among all leaders of the job.

        Answered by `agent_placed`, or by `agent_lost` if it cannot be done.
        """
        ...

    def remove(self, agent: str) -> None:
        """End the agent, and have its guard kill what is left. Does nothing if there is none.
        Answered by `agent_lost` once it has ended."""
        ...

    def send(self, agent: str, payload: bytes) -> None:
        """Send a payload; does nothing if there is no such agent. Safe in any thread."""
        ...

    def close(self) -> None:
        """Close the connection. Agents stay, until the fence or `remove` ends them."""
        ...
