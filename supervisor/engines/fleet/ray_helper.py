"""The leader's Ray helper: `python -m supervisor.engines.fleet.ray_helper FD CLUSTER`.

It is a child of the leader, and the only process of it that imports Ray. FD is a stream socket to
the leader (`helper_messages.py`), CLUSTER the JSON of a `Cluster`. It may die at any time: agents
and their relays are detached named actors, and the next helper finds them again. When the socket
is closed, it ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
from collections import deque
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supervisor.engines.fleet.helper_messages import (
    Alive,
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
from supervisor.engines.fleet.node_names import NodeNames
from supervisor.engines.fleet.payload_frames import Frames, framed
from supervisor.engines.fleet.ray_relay import OutdatedError, Relay
from supervisor.engines.fleet.start_problems import start_problem
from supervisor.engines.fleet.transport import Node
from supervisor.history.writer import writer


def _use_token() -> None:
    """Have Ray use the cluster's token if this host has one: Ray reads this when imported."""
    given = os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    if given or Path("~/.ray/auth_token").expanduser().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


_use_token()
import ray  # noqa: E402
from ray._private import state  # noqa: E402
from ray._private.authentication.authentication_utils import is_token_auth_enabled  # noqa: E402
from ray._private.services import canonicalize_bootstrap_address  # noqa: E402
from ray._raylet import GcsClient  # noqa: E402
from ray.exceptions import (  # noqa: E402
    ActorDiedError,
    ActorUnavailableError,
    AuthenticationError,
    RayError,
)

from supervisor.engines.fleet.ray_reservations import ReservationError, Reservations  # noqa: E402

_CHUNK = 1 << 16
_BEAT = 1.0
_LOOK = 1.0
"""Seconds between two looks at the nodes."""
_LOOK_TIMEOUT = 5.0
"""Seconds after which a look without an answer means that the cluster does not answer."""
_HEAR_PATIENCE = 30.0
"""Seconds that a relay waits for something to say."""
_PAUSE = 0.2
"""Seconds before a relay that could not be reached is called again."""
_PLACE_TIMEOUT = 60.0
"""Seconds for Ray to start a relay."""
_STOP_TIMEOUT = 10.0
_END_TIMEOUT = 2.0
_THREADS = 64
"""How many agents are placed at once: Ray's calls for that block."""
_CONNECT_TIMEOUT = 5.0
_TEXT_TOKEN = (
    "the Ray cluster at {} does not accept the token of this host: put the cluster's into "
    "~/.ray/auth_token, or into RAY_AUTH_TOKEN"
)
_TEXT_NO_RAY = "no Ray runs on this machine, whose cluster (address: auto) has the hosts of the job"
_MAX_UNSENT = 1024
"""Payloads that wait for a relay; the oldest are dropped first."""


class _Agent:
    """An agent that is placed, or being placed."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.actor: Any = None
        self.unsent: deque[bytes] = deque(maxlen=_MAX_UNSENT)
        self.has_unsent = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []


class Helper:
    """Passes on what the leader asks of the cluster, and what the agents say."""

    def __init__(self, connection: socket.socket, cluster: Cluster) -> None:
        self._connection, self._cluster = connection, cluster
        self._agents: dict[str, _Agent] = {}
        self._running: set[asyncio.Task[None]] = set()
        groups = {"hear": 4, "tell": 1}
        self._reservations = Reservations()
        self._names = NodeNames()
        """Outside of this process a node is called by its name; `_Agent.node` is its id."""
        self._relay = ray.remote(concurrency_groups=groups)(Relay)
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Join the cluster, and serve the leader until the socket is closed."""
        address = self._cluster.address
        try:
            address = _address_of(self._cluster)
            _join(self._cluster, address)
        except NoRayHereError:
            await self._say(Unreachable(_TEXT_NO_RAY))
            return
        except AuthenticationError:
            await self._say(Refused(_TEXT_TOKEN.format(self._cluster.address)))
            return
        except (OSError, RuntimeError, RayError) as error:
            why = _first_line(error)
            if why.startswith("Version mismatch"):
                why = " ".join(str(error).split())
                text = f"the Ray cluster at {address} has another Ray or Python: {why}"
                await self._say(Refused(text))
            else:
                where = address if self._cluster.address != "auto" else f"auto ({address})"
                await self._say(Unreachable(f"no Ray cluster answers at {where}: {_why(error)}"))
            return
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
        await self._find_agents()
        for one in (self._beat(), self._watch()):
            self._start(one)
        await self._listen()

    async def _find_agents(self) -> None:
        """Find the nodes, and what an earlier helper, or an earlier leader, has left."""
        await asyncio.to_thread(self._look)
        agents = await asyncio.to_thread(_relays)
        found = tuple((name, self._names.of(agent.node)) for name, agent in agents.items())
        await self._say(Joined(found, is_token_auth_enabled()))
        for name, agent in agents.items():
            self._serve(name, agent)

    # --- the leader -----------------------------------------------------------------------------

    async def _listen(self) -> None:
        loop, frames = asyncio.get_running_loop(), Frames()
        while data := await loop.sock_recv(self._connection, _CHUNK):
            for raw in frames.feed(data):
                self._obey(unpacked(raw))

    def _obey(self, message: HelperMessage) -> None:
        match message:
            case Place(name, node):
                if name not in self._agents:
                    self._agents[name] = agent = _Agent(self._names.node(node))
                    self._start(self._place(name, agent))
            case Remove(name):
                self._start(self._remove(name))
            case Payload(name, data):
                if (there := self._agents.get(name)) is not None:
                    there.unsent.append(data)
                    there.has_unsent.set()

    async def _say(self, message: HelperMessage) -> None:
        """Send a message. It returns once the leader can read it, even if this helper dies."""
        await asyncio.shield(self._write(framed(packed(message))))  # a frame is never cut

    async def _write(self, frame: bytes) -> None:
        async with self._writing:
            await asyncio.get_running_loop().sock_sendall(self._connection, frame)

    async def _beat(self) -> None:
        while True:
            await self._say(Alive())
            await asyncio.sleep(_BEAT)

    # --- the nodes ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Tell the leader which nodes are alive, at each change."""
        seen: tuple[Node, ...] | None = None
        while True:
            look = asyncio.ensure_future(asyncio.to_thread(self._look))
            await asyncio.wait({look}, timeout=_LOOK_TIMEOUT)
            if not look.done() or look.exception() is not None:
                await self._say(Unreachable("the head of the Ray cluster does not answer"))
                seen = None
            with suppress(RayError, RuntimeError, OSError):
                if (nodes := await look) != seen:
                    await self._say(Nodes(nodes))
                    seen = nodes
            await asyncio.sleep(_LOOK)

    def _look(self) -> tuple[Node, ...]:
        draining = state.state.get_draining_nodes()
        alive = {one["NodeID"]: one for one in ray.nodes() if one["Alive"]}
        self._reservations.nodes, needed = alive, self._cluster.resource
        usable = [one for one in alive.values() if _is_host(one["Resources"], needed)]
        self._names.update({one["NodeID"]: one["NodeManagerAddress"] for one in usable})
        return tuple(_node(one, draining, self._names) for one in usable)

    # --- agents ---------------------------------------------------------------------------------

    async def _place(self, name: str, agent: _Agent) -> None:
        try:
            agent.actor = await asyncio.to_thread(self._create, name, agent)
            await asyncio.wait_for(agent.actor.lead.remote(self._cluster.epoch), _PLACE_TIMEOUT)
        except TimeoutError:
            where = self._names.of(agent.node)
            why = f"Ray has not started it on node {where} within {_PLACE_TIMEOUT:g} s"
            await self._end(name, why)
        except (RayError, ReservationError, ValueError) as error:
            if isinstance(error, ActorDiedError) and error._actor_init_failed:
                await self._end(name, *start_problem(str(error), writer()))
            else:
                await self._end(name, _first_line(error))
        else:
            if name in self._agents:
                await self._say(Placed(name, self._names.of(agent.node)))
                self._serve(name, agent)
            else:  # it was removed meanwhile
                await asyncio.to_thread(ray.kill, agent.actor)

    def _create(self, name: str, agent: _Agent) -> Any:
        made = self._relay.options(
            name=name,
            lifetime="detached",
            max_restarts=0,
            max_task_retries=0,
            get_if_exists=True,
            **self._reservations.options(agent.node),
        )
        group = self._reservations.group_of(agent.node)
        return made.remote(self._cluster.agent, self._cluster.directory, agent.node, group)

    def _end_actor(self, agent: _Agent) -> None:
        """End an actor that is still there, and give its slice back if no agent is in it."""
        with suppress(RayError):
            ray.kill(agent.actor)
        group_of = self._reservations.group_of
        group = group_of(agent.node)
        if group is not None and group not in {group_of(one.node) for one in self._agents.values()}:
            self._reservations.give_back(group)

    def _serve(self, name: str, agent: _Agent) -> None:
        self._agents[name] = agent
        for one in (self._hear(name, agent), self._tell(name, agent)):
            agent.tasks.append(self._start(one))

    async def _hear(self, name: str, agent: _Agent) -> None:
        """Pass on what the agent says, until it has ended."""
        heard, ears = 0, agent.actor.hear.options(concurrency_group="hear")
        while True:
            try:
                batch, ended = await ears.remote(self._cluster.epoch, heard, _HEAR_PATIENCE)
            except ActorUnavailableError:
                await asyncio.sleep(_PAUSE)
                continue
            except OutdatedError as error:  # it is another leader's
                agent.actor = None
                await self._end(name, _first_line(error))
                return
            except RayError as error:
                await self._end(name, _first_line(error))
                return
            for number, data in batch:
                heard = number
                await self._say(Payload(name, data))
            if ended is not None:
                await self._end(name, ended)
                return

    async def _tell(self, name: str, agent: _Agent) -> None:
        mouth = agent.actor.tell.options(concurrency_group="tell")
        while True:
            await agent.has_unsent.wait()
            agent.has_unsent.clear()
            batch = [agent.unsent.popleft() for _ in range(len(agent.unsent))]
            with suppress(RayError, OutdatedError):  # `_hear` gets the same error
                await mouth.remote(self._cluster.epoch, batch)

    async def _remove(self, name: str) -> None:
        agent = self._agents.get(name)
        if agent is None:
            return
        if agent.actor is not None:
            try:
                await asyncio.wait_for(agent.actor.stop.remote(self._cluster.epoch), _STOP_TIMEOUT)
            except OutdatedError:  # it is another leader's
                agent.actor = None
            except (RayError, TimeoutError):
                pass  # it has ended, or will when its actor does
        await self._end(name, "it was removed")

    async def _end(self, name: str, why: str, remedy: str = "") -> None:
        """Forget the agent, and end its actor if it is still there."""
        if (agent := self._agents.pop(name, None)) is None:
            return
        if agent.actor is not None:
            ending = asyncio.ensure_future(asyncio.to_thread(self._end_actor, agent))
            await asyncio.wait({ending}, timeout=_END_TIMEOUT)  # the head may not answer
        await self._say(Lost(name, why, remedy))
        for task in agent.tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        """End this helper if a part of it has failed: the next one begins anew."""
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)


class NoRayHereError(Exception):
    """No Ray runs on this machine."""


def _address_of(cluster: Cluster) -> str:
    """Returns HOST:PORT of the head of a cluster.

    Raises:
        NoRayHereError: it is to be the cluster of this machine, and there is none.
    """
    if cluster.address != "auto":
        return cluster.address
    try:
        found: str | None = canonicalize_bootstrap_address(cluster.address)
    except ConnectionError as error:
        raise NoRayHereError from error
    if found is None:
        raise NoRayHereError
    return found


def _why(error: Exception) -> str:
    """Returns why a cluster does not answer, for people."""
    match error:
        case ConnectionRefusedError():
            return "nothing listens there"
        case socket.gaierror():
            return "no host has that name"
        case TimeoutError():
            return f"no answer within {_CONNECT_TIMEOUT:g} s"
        case OSError(strerror=str() as text):
            return text
        case _:
            return f"what listens there is no head of Ray, or does not work ({_first_line(error)})"


def _join(cluster: Cluster, address: str) -> None:
    """Connect this process to the cluster.

    Ray alone would try for 20 s and more, and not say what is wrong.

    Raises:
        AuthenticationError: the cluster wants another token.
        OSError: nothing answers at its address.
        RuntimeError: the versions of Ray or Python differ; or another error of Ray.
        RayError: another error of Ray.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
    GcsClient(address=address)
    ray.init(address, namespace=cluster.namespace, configure_logging=False, log_to_driver=False)


def _relays() -> dict[str, _Agent]:
    """Returns the agents of this job whose relays live, by name."""
    alive, found = state.actors(actor_state_name="ALIVE"), {}
    for name in ray.util.list_named_actors():
        with suppress(ValueError):  # it has ended by now
            actor = ray.get_actor(name)
            if (seen := alive.get(actor._actor_id.hex())) is not None:
                found[name] = agent = _Agent(seen["Address"]["NodeID"])
                agent.actor = actor
    return found


def _is_host(resources: Mapping[str, float], needed: str) -> bool:
    """Whether workers may run on a node with these resources; `needed`: the accelerator, if any.

    A node without CPUs only joins, as KubeRay's head and the pod of the leader do.
    """
    return "CPU" in resources and (not needed or needed in resources)


def _node(seen: dict[str, Any], draining: dict[str, int], names: NodeNames) -> Node:
    labels, name = seen["Labels"], seen["NodeID"]
    place = labels.get("ray.io/tpu-worker-id", "")
    return Node(
        names.of(name),
        seen["NodeManagerAddress"],
        labels.get("ray.io/tpu-slice-name", ""),
        int(place) if place.isdecimal() else None,
        _drained(draining[name]) if name in draining else "",
    )


def _drained(deadline: int) -> str:
    """`deadline` is a Unix time in milliseconds; 0: there is none."""
    if not deadline:
        return "Ray drains it"
    until = datetime.fromtimestamp(deadline / 1000, UTC)
    return f"Ray drains it until {until:%Y-%m-%dT%H:%M:%SZ}"


def _first_line(error: BaseException) -> str:
    """Returns the sentence of an error that says most: Ray adds tracebacks and advice."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return _first_line(cause)
    return lines[0] if lines else type(error).__name__


def main() -> None:
    """Run as `... FD CLUSTER`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection to each relay
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    connection.setblocking(False)
    helper = Helper(connection, Cluster(**json.loads(sys.argv[2])))
    asyncio.run(_serve(helper))


async def _serve(helper: Helper) -> None:
    with suppress(OSError):  # the leader has closed the socket
        await helper.run()
    os._exit(0)  # threads may wait for a cluster that does not answer


if __name__ == "__main__":
    main()
