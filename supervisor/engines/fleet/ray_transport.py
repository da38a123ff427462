"""The transport over Ray, as the leader has it: the client of its Ray helper (`ray_helper.py`).

The leader never imports Ray. Its helper does so in a process of its own, a child of the leader: if
that dies or hangs, another one takes its place, and finds the agents again. Nothing that runs is
touched by that, as long as the next helper comes before the fence.
"""

from __future__ import annotations

import json
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Protocol

from supervisor.engines.fleet.helper_messages import (
    Cluster,
    HelperMessage,
    Joined,
    Lost,
    Nodes,
    Payload,
    Place,
    Placed,
    Refused,
    Remove,
    Unreachable,
    packed,
    unpacked,
)
from supervisor.engines.fleet.payload_frames import FrameError, Frames, framed
from supervisor.engines.fleet.transport import Listener, Node
from supervisor.host.notice import Notice, Tell

_CHUNK = 1 << 16
_LOOK = 1.0
_START_TIMEOUT = 60.0
"""Seconds for a helper to import Ray and to join the cluster."""
_SILENCE = 5.0
"""Seconds without a word of the helper, which speaks every second, after which it is replaced."""
_FIRST_PAUSE = 0.5
"""Seconds before a cluster that did not answer is tried again; each time twice as long."""
_PAUSES = (0.0, 0.0, 1.0, 2.0, 5.0)
"""Seconds before the next helper, by how many have ended without joining; then as the last."""
_TEXT_OPEN = (
    "the Ray cluster has no token: everybody who reaches its ports can run code on all its hosts. "
    "Make one (ray get-auth-token --generate), and put ~/.ray/auth_token on each host before Ray "
    "is started there"
)
_TELL_AFTER = 3.0
"""Seconds to wait for the cluster before people are told of it."""
_GLANCE = 0.2
"""Seconds between two looks at whether somebody who waits has given up."""
_MAX_SAID = 2048
"""Bytes at the end of a helper's error output that are told."""


class MainLoop(Protocol):
    """What the transport needs of the reactor."""

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `descriptor` can be read."""
        ...

    def forget(self, descriptor: int) -> None:
        """Stop watching `descriptor`."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        """Call `callback` once, `delay` seconds from now."""
        ...


class ClusterRefusedError(Exception):
    """The Ray cluster can never be used as it is."""


class ClusterUnreachableError(Exception):
    """No Ray cluster answers."""


@dataclass(slots=True)
class _Agent:
    """What the leader knows of an agent."""

    node: str
    is_placed: bool = False
    is_removed: bool = False


class RayTransport:
    """Implements `transport.Transport`."""

    def __init__(self, cluster: Cluster, loop: MainLoop, tell: Tell) -> None:
        """Start a helper; `join` or `begin` come next."""
        self._cluster, self._loop, self._tell = cluster, loop, tell
        self._listener: Listener | None = None
        self._agents: dict[str, _Agent] = {}
        self._lost: set[str] = set()
        """Agents that are lost for the listener, and stay so."""
        self._nodes: tuple[Node, ...] | None = None
        """Those that the listener was told of; None: the cluster does not answer."""
        self._looked_at = 0.0
        """When `_look` was last called."""
        self._told_lost = self._told_open = False
        self._is_closed = False
        self._failures = 0
        """How many helpers in a row have not joined."""
        self._helper = _HelperProcess(cluster)

    @property
    def helper_pid(self) -> int:
        """The pid of the present helper, or of the last one."""
        return self._helper.pid

    def join(self, patience: float, tell_now: Tell, gives_up: Callable[[], bool]) -> None:
        """Wait until the helper is in the cluster, or until `gives_up` is true. Nothing is lost if
        the caller waits here: what comes is kept for the listener. `tell_now` tells people at once
        that this takes long.

        Raises:
            ClusterRefusedError: the cluster can never be used as it is.
            ClusterUnreachableError: it has not answered for `patience` seconds.
        """
        began = time.monotonic()
        until, why = began + patience, ""
        pause, is_told = _FIRST_PAUSE, False
        while time.monotonic() < until and not gives_up():
            message = self._helper.first(_GLANCE)
            match message:
                case Refused(text):
                    raise ClusterRefusedError(text)
                case Joined():
                    return
                case Unreachable(text):
                    why = text
                case _:
                    why = self._helper.last_words() or why
            if not is_told and time.monotonic() >= began + _TELL_AFTER:
                is_told = True
                tell_now(self._awaited(why, patience))
            if message is None and not self._helper.is_closed:
                continue
            self._helper.kill()
            _sleep(min(pause, until - time.monotonic()), gives_up)
            pause = min(2 * pause, _PAUSES[-1])
            self._helper = _HelperProcess(self._cluster)
        if not gives_up():
            address = self._cluster.address
            raise ClusterUnreachableError(why or f"no Ray cluster answers at {address}")

    def _awaited(self, why: str, patience: float) -> Notice:
        """Returns what people should know if the cluster does not answer at once."""
        address = self._cluster.address
        reason = f" ({why})" if why else ""
        text = (
            f"waiting for the Ray cluster at {address} (trainer.init.hosts.address) for "
            f"{patience:g} s at most{reason}"
        )
        return Notice("cluster-awaited", text, address=address, seconds=patience, reason=why)

    def begin(self, listener: Listener) -> None:
        """See `Transport`."""
        self._listener = listener
        self._looked_at = time.monotonic()
        self._attach()
        self._loop.call_later(_LOOK, self._look)

    def place(self, agent: str, node: str) -> None:
        """See `Transport`."""
        self._agents[agent] = _Agent(node)
        self._helper.say(Place(agent, node))

    def remove(self, agent: str) -> None:
        """See `Transport`."""
        if (known := self._agents.get(agent)) is not None:
            known.is_removed = True
            self._helper.say(Remove(agent))

    def send(self, agent: str, payload: bytes) -> None:
        """See `Transport`."""
        if agent in self._agents:
            self._helper.say(Payload(agent, payload))

    def close(self) -> None:
        """See `Transport`."""
        if not self._is_closed:
            self._is_closed = True
            if not self._helper.is_gone:
                self._loop.forget(self._helper.descriptor)
                self._helper.finish()

    # --- the helper -----------------------------------------------------------------------------

    def _attach(self) -> None:
        self._loop.watch(self._helper.descriptor, self._read)
        for message in self._helper.waiting():
            self._take(message)

    def _read(self) -> None:
        """Take what the helper says; replace it if it has ended."""
        helper = self._helper
        for message in helper.read():
            self._take(message)
        if helper is self._helper and helper.is_closed:
            self._replace(f"the Ray helper has ended: {helper.last_words() or 'it was killed'}")

    def _look(self) -> None:
        """Replace a helper that says nothing, unless it is we who did not listen."""
        if self._is_closed:
            return
        late = time.monotonic() - self._looked_at - _LOOK
        self._looked_at = time.monotonic()
        if late > _LOOK:
            self._helper.excuse()
        if self._helper.silence > (_SILENCE if self._helper.has_joined else _START_TIMEOUT):
            self._replace(f"the Ray helper has said nothing for {self._helper.silence:.0f} s")
        self._loop.call_later(_LOOK, self._look)

    def _replace(self, why: str) -> None:
        helper = self._helper
        self._loop.forget(helper.descriptor)
        helper.kill()
        if helper.has_joined:
            text = f"{why}; another one joins the cluster, and the workers go on"
            self._tell(Notice("ray-helper-replaced", text, reason=why))
        self._failures = 0 if helper.has_joined else self._failures + 1
        if self._failures == len(_PAUSES):
            self._lose_cluster(why)
        pause = _PAUSES[min(self._failures, len(_PAUSES) - 1)]
        if pause:
            self._loop.call_later(pause, self._restart)
        else:
            self._restart()

    def _restart(self) -> None:
        if not self._is_closed:
            self._helper = _HelperProcess(self._cluster)
            self._attach()

    # --- what it says ---------------------------------------------------------------------------

    def _take(self, message: HelperMessage) -> None:
        assert self._listener is not None
        match message:
            case Joined(agents, with_token):
                self._join_agents(dict(agents))
                if not with_token and not self._told_open:
                    self._told_open = True
                    self._tell(Notice("ray-cluster-open", _TEXT_OPEN))
            case Nodes(nodes):
                if nodes != self._nodes:
                    self._nodes, self._told_lost = nodes, False
                    self._listener.nodes_seen(nodes)
            case Unreachable(why) | Refused(why):
                self._lose_cluster(why)
            case Placed(agent, node):
                self._placed(agent, node)
            case Lost(agent, why, remedy):
                self._lose(agent, why, remedy)
            case Payload(agent, data):
                if agent in self._agents:
                    self._listener.heard(agent, data)

    def _join_agents(self, found: dict[str, str]) -> None:
        """Compare the agents that a helper has found with those that the last one had."""
        for agent, known in list(self._agents.items()):
            if known.is_removed and agent in found:
                self._helper.say(Remove(agent))
            elif known.is_removed:
                self._lose(agent, "it was removed")
            elif agent not in found and known.is_placed:
                self._lose(agent, "its relay has ended")
            elif agent not in found:
                self._helper.say(Place(agent, known.node))
        for agent, node in found.items():
            if agent in self._lost:
                self._helper.say(Remove(agent))
            else:
                self._placed(agent, node)

    def _placed(self, agent: str, node: str) -> None:
        known = self._agents.setdefault(agent, _Agent(node))
        if not known.is_placed and not known.is_removed:
            known.is_placed = True
            assert self._listener is not None
            self._listener.agent_placed(agent, node)

    def _lose(self, agent: str, why: str, remedy: str = "") -> None:
        if self._agents.pop(agent, None) is not None:
            self._lost.add(agent)
            assert self._listener is not None
            self._listener.agent_lost(agent, why, remedy)

    def _lose_cluster(self, why: str) -> None:
        if not self._told_lost:
            self._nodes, self._told_lost = None, True
            assert self._listener is not None
            self._listener.cluster_lost(why)


class _HelperProcess:
    """A helper, and the socket to it. A thread writes, so a helper that hangs blocks nobody."""

    def __init__(self, cluster: Cluster) -> None:
        self._connection, theirs = socket.socketpair()
        self._errors = os.memfd_create("ray-helper-errors")
        with theirs:
            module = "supervisor.engines.fleet.ray_helper"
            number, told = theirs.fileno(), json.dumps(asdict(cluster))
            # It stays in our session, so it is never taken for a process of the job
            # (`supervisor/host/orphans.py`); but the terminal's Ctrl-C is for us.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(number), told],
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                process_group=0,
            )
        self._frames = Frames()
        self._waiting: list[HelperMessage] = []
        self._heard_at = time.monotonic()
        self._unsaid: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._write, name="to the Ray helper", daemon=True).start()
        self.has_joined = self.is_closed = self.is_gone = False

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._process.pid

    @property
    def descriptor(self) -> int:
        """Can be read when the helper has spoken or ended."""
        return self._connection.fileno()

    @property
    def silence(self) -> float:
        """Seconds since the helper has spoken, or was started."""
        return time.monotonic() - self._heard_at

    def excuse(self) -> None:
        """Its silence counts from now on: nobody has listened."""
        self._heard_at = time.monotonic()

    def say(self, message: HelperMessage) -> None:
        """Send a message; never blocks. Safe in any thread."""
        self._unsaid.put(framed(packed(message)))

    def read(self) -> list[HelperMessage]:
        """Returns the messages that have come. Called when there is something to read."""
        try:
            data = self._connection.recv(_CHUNK)
            found = [unpacked(raw) for raw in self._frames.feed(data)]
        except (OSError, FrameError):
            data, found = b"", []
        self.is_closed |= not data
        self._heard_at = time.monotonic()
        self.has_joined |= any(isinstance(one, Joined) for one in found)
        return found

    def first(self, patience: float) -> HelperMessage | None:
        """Returns the first message, which stays to be taken; None: there is none in time."""
        until = time.monotonic() + patience
        while not self._waiting and not self.is_closed:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._connection], [], [], left)[0]:
                return None
            self._waiting += self.read()
        return self._waiting[0] if self._waiting else None

    def waiting(self) -> list[HelperMessage]:
        """Returns the messages that `first` has kept; each once."""
        found, self._waiting = self._waiting, []
        return found

    def last_words(self) -> str:
        """Returns the last line of its error output."""
        size = os.fstat(self._errors).st_size
        raw = os.pread(self._errors, _MAX_SAID, max(0, size - _MAX_SAID))
        lines = [line for line in raw.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    def finish(self) -> None:
        """Send what is not sent yet, and end the helper."""
        self._unsaid.put(None)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LOOK)
        self.kill()

    def kill(self) -> None:
        """End the helper; does nothing if that is done."""
        if self.is_gone:
            return
        self.is_gone = True
        self._process.kill()
        self._process.wait()
        self._unsaid.put(None)
        self._connection.close()
        os.close(self._errors)

    def _write(self) -> None:
        with suppress(OSError):  # whoever reads sees that it has ended
            while (frame := self._unsaid.get()) is not None:
                self._connection.sendall(frame)
            self._connection.shutdown(socket.SHUT_WR)


def _sleep(seconds: float, gives_up: Callable[[], bool]) -> None:
    """Sleep for so long, or until `gives_up` is true."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not gives_up():
        time.sleep(min(_GLANCE, left))
