"""Measures the supervisor of many hosts with 50 real agents, actors on a small real Ray.

    python -m benchmarks.many_agents [--quick] [--json FILE]

All of it is on this machine: a few nodes of Ray, on each of which are several agents. Each agent
says that it is on a machine of its own, and has a guard and a rank (a shell that sleeps). The
leader is this process: the engine of many hosts with its helper, which alone speaks to Ray. So this
adds to `leader_scale` what carries the messages. `N` is the number of agents.

* `ready_N`: from a cluster without agents until all of them can start ranks. Ray starts a process
  for each, and each starts two of its own, all on this machine's cores.
* `told_N`: messages of agents that reach the leader while ranks run, for each second.
  `leader_N`, `helper_N`: CPU time of the leader and of its helper in that time, percent of a core.
* `answered_N`: how many messages go from the leader to an agent and back in each second, if the
  leader sends each agent the next one as soon as the last is answered.
* `kill_N`: SIGKILL of one rank -> the last of the others is gone. `gone_N`: -> all hosts have
  confirmed it, and the attempt is judged. `again_N`: -> all ranks of the next attempt run.
* `leader_pss_N`, `helper_pss_N`: memory at the end, MB (PSS). `files_N`: what the helper has open.
"""

from __future__ import annotations

import os
import select
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from benchmarks.contest import FailedError
from benchmarks.report import Report, options
from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.core.events import Event, WorkersGone, WorkersObserved, WorkersStarted
from supervisor.engines.fleet.fleet_engine import FleetEngine
from supervisor.engines.fleet.fleet_means import Leadership
from supervisor.engines.fleet.fleet_messages import Hello, Lead, encoded, report_of
from supervisor.engines.fleet.helper_messages import Cluster
from supervisor.engines.fleet.ray_transport import RayTransport
from supervisor.engines.fleet.transport import Listener, Node
from supervisor.engines.this_host import ThisHost
from supervisor.history.writer import writer
from tests.engines.benches import NoCache
from tests.fleet.leading import launch_of
from tests.fleet.ray_nodes import TOKEN, RayNodes, ray_nodes
from tests.running import shared_guard

_NODES = 4
_AT_ONCE = 10
"""How many hosts join at once: on hosts of their own, all would start at the same time."""
_LOST_AFTER = 10.0
_EPOCH = 1
_PATIENCE = 300.0
_RANK = "exec sleep 100000"
_AGENT = (
    "import os, uuid; os.environ['SUPERVISE_MACHINE'] = uuid.uuid4().hex;"
    "from supervisor.engines.fleet.agent_process import main; main()"
)
"""An agent on a machine of its own."""

E = TypeVar("E", bound=Event)


class SharedNodes:
    """A transport with more hosts than Ray has nodes: several agents are on each node."""

    def __init__(self, transport: RayTransport, number: int) -> None:
        self._transport, self._number = transport, number
        self._listener: Listener
        self._nodes: tuple[Node, ...] = ()
        self._shown = 0
        self._hosts: dict[str, str] = {}
        """The host of each agent."""
        self.greeted: set[str] = set()
        """The agents that have introduced themselves."""
        self.num_heard = 0
        """How many messages have come."""
        self.on_hello: Callable[[str], None] = lambda agent: None

    def show(self, number: int) -> None:
        """Have so many of the hosts in the cluster."""
        self._shown = number
        self._show()

    def _show(self) -> None:
        hosts = [self._host(index) for index in range(self._shown if self._nodes else 0)]
        self._listener.nodes_seen(tuple(hosts))

    def _host(self, index: int) -> Node:
        node = self._nodes[index % len(self._nodes)]
        return replace(node, id=f"{node.id}/{index}")

    # --- the transport --------------------------------------------------------------------------

    def begin(self, listener: Listener) -> None:
        """See `Transport`."""
        self._listener = listener
        self._transport.begin(self)

    def place(self, agent: str, node: str) -> None:
        """See `Transport`."""
        self._hosts[agent] = node
        self._transport.place(agent, node.partition("/")[0])

    def remove(self, agent: str) -> None:
        """See `Transport`."""
        self._transport.remove(agent)

    def send(self, agent: str, payload: bytes) -> None:
        """See `Transport`."""
        self._transport.send(agent, payload)

    def close(self) -> None:
        """See `Transport`."""
        self._transport.close()

    # --- the listener ---------------------------------------------------------------------------

    def nodes_seen(self, nodes: tuple[Node, ...]) -> None:
        """See `Listener`."""
        self._nodes = nodes if len(nodes) == _NODES else ()
        self._show()

    def agent_placed(self, agent: str, node: str) -> None:
        """See `Listener`."""
        self._listener.agent_placed(agent, self._hosts[agent])

    def agent_lost(self, agent: str, why: str, remedy: str = "") -> None:
        """See `Listener`."""
        self._listener.agent_lost(agent, why, remedy)

    def heard(self, agent: str, payload: bytes) -> None:
        """See `Listener`."""
        self.num_heard += 1
        self._listener.heard(agent, payload)
        if isinstance(report_of(payload), Hello):
            self.greeted.add(agent)
            self.on_hello(agent)

    def cluster_lost(self, why: str) -> None:
        """See `Listener`."""
        self._listener.cluster_lost(why)


@dataclass
class Run:
    """A leader of `size` agents."""

    address: str
    size: int
    folder: Path
    told: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clock = SystemClock()
        self._reactor = Reactor(self._clock)
        here, job = str(Path.cwd()), f"supervise-{self.size}"
        cluster = Cluster(self.address, job, _EPOCH, here, agent=("-P", "-c", _AGENT))
        self._ray = RayTransport(cluster, self._reactor, print)
        self._ray.join(_PATIENCE, print, lambda: False)
        self.hosts = SharedNodes(self._ray, self.size)
        self.engine = FleetEngine(
            self.hosts,
            self._reactor,
            self._clock,
            ThisHost(shared_guard(), self.folder / "none"),
            {},
            NoCache(),
            Leadership(_EPOCH, writer(), _LOST_AFTER, f"of-{self.size}"),
            self.size,
            lambda: None,
            wait_for_capacity=600.0,
        )

    def until(self, what: str, happened: Callable[[], bool]) -> None:
        """Lead until that has happened.

        Raises:
            FailedError: it does not in time.
        """
        end = time.monotonic() + _PATIENCE
        while not happened():
            if time.monotonic() > end:
                raise FailedError(f"no {what} of {self.size} agents within {_PATIENCE:g} s")
            self.told += self._reactor.wait(self._clock.now() + 0.05)

    def lead(self, seconds: float) -> None:
        """Lead for so long."""
        end = time.monotonic() + seconds
        self.until("end", lambda: time.monotonic() >= end)

    def event(self, kind: type[E], attempt: int) -> E:
        """The first event of a kind of the attempt, which is waited for."""

        def found() -> Iterator[E]:
            return (
                event
                for event in self.told
                if isinstance(event, kind) and getattr(event, "attempt", 0) == attempt
            )

        self.until(kind.__name__, lambda: next(found(), None) is not None)
        return next(found())

    @property
    def helper(self) -> psutil.Process:
        """The process that speaks to Ray."""
        return psutil.Process(self._ray.helper_pid)

    def close(self) -> None:
        """End all agents, and leave the cluster."""
        self.engine.end_agents()
        self.until("end", lambda: not self.engine.agents)
        self._ray.close()


def main() -> None:
    """Measure and report."""
    given = options(__doc__)
    report = Report("many_agents")
    sizes, kills, seconds = ((8,), 2, 5.0) if given.quick else ((10, 50), 10, 20.0)
    os.environ["RAY_AUTH_TOKEN"] = TOKEN
    with ray_nodes() as ray:
        for _ in range(_NODES):
            ray.start()
        for size in sizes:
            try:
                _measure(report, ray, size, kills, seconds)
            except FailedError as error:
                report.left_out[f"{size} agents"] = str(error)
    report.finish(given.json)


@contextmanager
def _leading(ray: RayNodes, size: int) -> Iterator[Run]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        run = Run(ray.address, size, Path(folder))
        try:
            yield run
        finally:
            run.close()


def _measure(report: Report, ray: RayNodes, size: int, kills: int, seconds: float) -> None:
    with _leading(ray, size) as run:
        began = time.monotonic()
        for shown in [*range(_AT_ONCE, size, _AT_ONCE), size]:
            run.hosts.show(shown)
            run.until("greeting", partial(_have_greeted, run, shown))
        ready = time.monotonic() - began
        pids = _started(run, 1)
        report.figure(f"ready_{size}_s", ready)
        _measure_quiet(report, run, size, seconds)
        report.figure(f"answered_{size}_per_s", _answered(run, seconds))
        found: dict[str, list[float]] = {"kill": [], "gone": [], "again": []}
        for attempt in range(1, kills + 1):
            pids = _measure_kill(run, attempt, pids, found)
        for name, values in found.items():
            report.spread(f"{name}_{size}", "s", values)
        for name, process in (("leader", psutil.Process()), ("helper", run.helper)):
            report.figure(f"{name}_pss_{size}_mb", process.memory_full_info().pss / 1e6)
        report.figure(f"files_{size}", run.helper.num_fds())
        run.engine.kill(launch_of(run.folder, _RANK, size, kills + 1), ())
        run.event(WorkersGone, kills + 1)


def _have_greeted(run: Run, number: int) -> bool:
    return len(run.hosts.greeted) >= number


def _started(run: Run, attempt: int) -> Sequence[int]:
    """Start an attempt; returns the pids of its ranks once all of them run."""
    launch = launch_of(run.folder, _RANK, run.size, attempt)
    launch.directory.mkdir()
    run.engine.start(launch)
    return run.event(WorkersStarted, attempt).pids


def _measure_quiet(report: Report, run: Run, size: int, seconds: float) -> None:
    """Measure while ranks run and nothing happens."""
    helper, heard, began = run.helper, run.hosts.num_heard, time.monotonic()
    ours, theirs = time.process_time(), _cpu(helper)
    run.lead(seconds)
    lasted = time.monotonic() - began
    report.figure(f"told_{size}_per_s", (run.hosts.num_heard - heard) / lasted)
    report.figure(f"leader_{size}_percent", 100 * (time.process_time() - ours) / lasted)
    report.figure(f"helper_{size}_percent", 100 * (_cpu(helper) - theirs) / lasted)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _answered(run: Run, seconds: float) -> float:
    """Returns how many messages all agents together answer in a second."""
    lead = encoded(Lead(_EPOCH, writer(), _LOST_AFTER, ""))
    count = 0

    def ask(agent: str) -> None:
        nonlocal count
        count += 1
        run.hosts.send(agent, lead)

    for agent in run.hosts.greeted:
        run.hosts.send(agent, lead)
    run.hosts.on_hello = ask
    began = time.monotonic()
    run.lead(seconds)
    lasted = time.monotonic() - began
    run.hosts.on_hello = lambda agent: None
    return count / lasted


def _measure_kill(
    run: Run, attempt: int, pids: Sequence[int], found: dict[str, list[float]]
) -> Sequence[int]:
    """Kill a rank, then the attempt; returns the pids of the next attempt's ranks."""
    ends: list[float] = []
    looks = threading.Thread(target=_note_end_of_all, args=(pids, ends))
    looks.start()
    began = time.monotonic()
    os.kill(pids[-1], signal.SIGKILL)
    observed = run.event(WorkersObserved, attempt)
    while not observed.exits:
        run.told = [event for event in run.told if event is not observed]
        observed = run.event(WorkersObserved, attempt)
    run.engine.kill(launch_of(run.folder, _RANK, run.size, attempt), observed.exits)
    run.event(WorkersGone, attempt)
    found["gone"].append(time.monotonic() - began)
    looks.join()
    found["kill"].append(ends[0] - began)
    pids = _started(run, attempt + 1)
    found["again"].append(time.monotonic() - began)
    return pids


def _note_end_of_all(pids: Sequence[int], ends: list[float]) -> None:
    """Wait for the ends of all these processes, and note when the last one came."""
    poll, left = select.poll(), set()
    for pid in pids:
        left.add(descriptor := os.pidfd_open(pid))
        poll.register(descriptor, select.POLLIN)
    while left:
        for descriptor, _ in poll.poll():
            poll.unregister(descriptor)
            left.remove(descriptor)
            os.close(descriptor)
    ends.append(time.monotonic())


if __name__ == "__main__":
    main()
