"""What the leader and its Ray helper say to one another: a line of JSON, then a payload.

The helper is a child of the leader, of the same code: there are no versions. It is told its
`Cluster` when it is started. Each message is a frame (`payload_frames.py`) on the socket between
them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import get_args

from supervisor.engines.fleet.transport import Node


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster, and the job that uses it."""

    address: str
    """As `ray.init` has it: HOST:PORT, or auto."""
    namespace: str
    """Names the job in the cluster: the names of its agents are its own."""
    epoch: int
    """Of this leader: relays refuse whoever has a lower one."""
    directory: str
    """The working directory of agents, and so of ranks."""
    resource: str = ""
    """The resource of Ray that a node must have to be shown: GPU or TPU; empty: none. The head of a
    cluster has often no accelerator."""
    agent: tuple[str, ...] = ("-P", "-m", "supervisor.engines.fleet.agent_process")
    """The arguments with which the Python of a host starts an agent, without the descriptor."""


@dataclass(frozen=True, slots=True)
class Place:
    """Start an agent on the node. Answered by `Placed` or `Lost`."""

    agent: str
    node: str


@dataclass(frozen=True, slots=True)
class Remove:
    """End an agent. Answered by `Lost`."""

    agent: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The helper is in the cluster."""

    agents: tuple[tuple[str, str], ...]
    """The agents of this job that are there, and their nodes."""
    with_token: bool
    """Whether the helper has shown a token. Without one, everybody who reaches the cluster can run
    code in it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The cluster can never be used as it is; the text says why, and what to do. The helper
    ends."""

    why: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The cluster does not answer. The helper ends if it has not joined yet."""

    why: str


@dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes that are alive."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """The agent runs on the node."""

    agent: str
    node: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The agent has ended, cannot be reached any more, or could not be placed."""

    agent: str
    why: str
    remedy: str = ""
    """What a person does if no agent can run on its host as that is set up; empty: one may."""


@dataclass(frozen=True, slots=True)
class Alive:
    """The helper works. Said every second."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes for an agent, or of one."""

    agent: str
    data: bytes


HelperMessage = (
    Place | Remove | Joined | Refused | Unreachable | Nodes | Placed | Lost | Alive | Payload
)
_KINDS = {kind.__name__: kind for kind in get_args(HelperMessage)}


def packed(message: HelperMessage) -> bytes:
    """Returns the bytes of a message."""
    keys, data = asdict(message), b""
    if isinstance(message, Payload):
        data = keys.pop("data")
    return json.dumps([type(message).__name__, keys]).encode() + b"\n" + data


def unpacked(raw: bytes) -> HelperMessage:
    """Returns the message in the bytes."""
    line, _, data = raw.partition(b"\n")
    name, keys = json.loads(line)
    if name == Nodes.__name__:
        return Nodes(tuple(Node(**node) for node in keys["nodes"]))
    if name == Joined.__name__:
        agents = tuple((agent, node) for agent, node in keys["agents"])
        return Joined(agents, keys["with_token"])
    if name == Payload.__name__:
        keys["data"] = data
    message: HelperMessage = _KINDS[name](**keys)
    return message
