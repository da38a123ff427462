"""A cluster on one machine: each agent is a real process with a guard of its own, on a "host".

The relay between leader and agents is this module: it can drop what goes one way or both ways.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.adapters.kernel.reactor import Reactor
from supervisor.engines.fleet.agent_process import MACHINE
from supervisor.engines.fleet.payload_frames import Frames, framed
from supervisor.engines.fleet.transport import Listener, Node

PROGRAM = "supervisor.engines.fleet.agent_process"


@dataclass(slots=True)
class Relayed:
    """An agent's process, and its relay."""

    name: str
    node: str
    process: subprocess.Popen[bytes]
    line: socket.socket
    frames: Frames = field(default_factory=Frames)
    reaches_agent: bool = True
    reaches_leader: bool = True
    has_spoken: bool = False
    kept: list[bytes] = field(default_factory=list)

    @property
    def guard(self) -> int:
        """The pid of its guard."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(path.read_text().split()[0])

    def cut(self, *, to_agent: bool = True, to_leader: bool = True) -> None:
        """Drop what goes to the agent, to the leader, or both."""
        self.reaches_agent &= not to_agent
        self.reaches_leader &= not to_leader

    def heal(self) -> None:
        """Let everything through again; what was dropped stays lost."""
        self.reaches_agent = self.reaches_leader = True

    def signal(self, number: signal.Signals) -> None:
        """Signal the agent alone."""
        self.process.send_signal(number)

    def freeze(self) -> None:
        """Stop the agent, its guard and all below, as a frozen host does."""
        for pid in (self.process.pid, *below(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue them, the ranks first: nothing saves them from the guard."""
        for pid in (*reversed(below(self.process.pid)), self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def below(pid: int) -> list[int]:
    """The pids of all descendants of a process."""
    try:
        told = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [each for child in map(int, told) for each in (child, *below(child))]


class Cluster:
    """The nodes, and the agents on them. Leaders come and go, the agents stay."""

    def __init__(self, nodes: int) -> None:
        self.nodes = {f"n{index}": Node(f"n{index}", "127.0.0.1") for index in range(nodes)}
        self.agents: dict[str, Relayed] = {}
        self.environ: dict[str, dict[str, str]] = {}
        """The variables of each node, beside those of this process."""
        self.lines: list[Line] = []

    def on(self, node: str) -> Relayed:
        """The agent of a node."""
        return [each for each in self.agents.values() if each.node == node][-1]

    def place(self, name: str, node: str) -> None:
        """Start an agent."""
        ours, theirs = socket.socketpair()
        environ = {**os.environ, MACHINE: node, **self.environ.get(node, {})}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, str(theirs.fileno())],
                env=environ,
                pass_fds=[theirs.fileno()],
            )
        relayed = self.agents[name] = Relayed(name, node, process, ours)
        for line in self.lines:
            line.watch(relayed)
            line.listener.agent_placed(name, node)

    def heard(self, relayed: Relayed) -> None:
        """Pass on what an agent has sent, or that it has ended."""
        try:
            data = relayed.line.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        for payload in relayed.frames.feed(data):
            relayed.has_spoken = True
            for line in self.lines:
                if relayed.reaches_leader:
                    line.listener.heard(relayed.name, payload)
        if not data:
            self.agents.pop(relayed.name)
            for line in self.lines:
                line.reactor.forget(relayed.line.fileno())
                line.listener.agent_lost(relayed.name, "its process has ended")
            relayed.line.close()
            relayed.process.wait()

    def vanish(self, node: str) -> None:
        """Take a node out of the cluster's sight, while everything on it goes on, cut off."""
        self.nodes.pop(node)
        self.on(node).cut()
        for line in self.lines:
            line.listener.nodes_seen(tuple(self.nodes.values()))

    def close(self) -> None:
        """End all agents."""
        for relayed in self.agents.values():
            relayed.thaw()
            relayed.line.close()
        for relayed in self.agents.values():
            relayed.process.wait()


class Line:
    """Implements `transport.Transport` for one leader."""

    def __init__(self, cluster: Cluster, reactor: Reactor) -> None:
        self._cluster = cluster
        self.reactor = reactor
        self.listener: Listener

    def begin(self, listener: Listener) -> None:
        """See `Transport`."""
        self.listener = listener
        self._cluster.lines.append(self)
        self.reactor.call_later(0.0, self._introduce)

    def _introduce(self) -> None:
        for relayed in self._cluster.agents.values():
            self.watch(relayed)
            self.listener.agent_placed(relayed.name, relayed.node)
        self.listener.nodes_seen(tuple(self._cluster.nodes.values()))

    def watch(self, relayed: Relayed) -> None:
        """Listen to an agent."""
        callback: Callable[[], None] = lambda: self._cluster.heard(relayed)  # noqa: E731
        self.reactor.watch(relayed.line.fileno(), callback)

    def place(self, agent: str, node: str) -> None:
        """See `Transport`."""
        self.reactor.call_later(0.0, lambda: self._cluster.place(agent, node))

    def remove(self, agent: str) -> None:
        """See `Transport`."""
        if (relayed := self._cluster.agents.get(agent)) is not None:
            relayed.line.shutdown(socket.SHUT_RDWR)

    def send(self, agent: str, payload: bytes) -> None:
        """See `Transport`."""
        relayed = self._cluster.agents.get(agent)
        if relayed is not None and relayed.reaches_agent:
            with suppress(BrokenPipeError, ConnectionResetError):
                relayed.line.sendall(framed(payload))

    def close(self) -> None:
        """See `Transport`: this leader is gone, or does not run."""
        if self in self._cluster.lines:
            self._cluster.lines.remove(self)
        for relayed in self._cluster.agents.values():
            self.reactor.forget(relayed.line.fileno())
