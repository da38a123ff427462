"""The transport over Ray, on a small real Ray: three nodes on this machine, and toy agents."""

from __future__ import annotations

import ast
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.engines.fleet.helper_messages import Cluster
from supervisor.engines.fleet.ray_transport import (
    _SILENCE,
    ClusterRefusedError,
    ClusterUnreachableError,
    RayTransport,
)
from supervisor.engines.fleet.transport import Node
from supervisor.host.notice import Notice
from tests.fleet.ray_nodes import TOKEN, RayNodes, ray_nodes
from tests.running import eventually

pytestmark = pytest.mark.cluster
ECHO = str(Path(__file__).with_name("echo_agent.py"))
_NUMBERS = itertools.count()


class Leader:
    """A leader's transport with its main loop, and what it was told."""

    def __init__(self, ray: RayNodes, job: str, epoch: int = 1, resource: str = "") -> None:
        self._clock = SystemClock()
        self._reactor = Reactor(self._clock)
        self.notices: list[Notice] = []
        self.nodes: tuple[Node, ...] = ()
        self.placed: list[tuple[str, str]] = []
        self.lost: dict[str, str] = {}
        self.remedies: dict[str, str] = {}
        self.said: dict[str, list[bytes]] = {}
        self.cluster_losses: list[str] = []
        here = str(Path.cwd())
        cluster = Cluster(
            ray.address, f"supervise-{job}", epoch, here, resource, agent=("-P", ECHO)
        )
        self.transport = RayTransport(cluster, self._reactor, self.notices.append)

    def nodes_seen(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = nodes

    def agent_placed(self, agent: str, node: str) -> None:
        self.placed.append((agent, node))

    def agent_lost(self, agent: str, why: str, remedy: str = "") -> None:
        assert agent not in self.lost
        self.lost[agent] = why
        self.remedies[agent] = remedy

    def heard(self, agent: str, payload: bytes) -> None:
        assert agent not in self.lost
        self.said.setdefault(agent, []).append(payload)

    def cluster_lost(self, why: str) -> None:
        self.cluster_losses.append(why)

    def until(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        """Run the main loop until the condition is true."""
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, (self.lost, self.notices, self.cluster_losses)
            self._reactor.wait(self._clock.now() + 0.005)

    def place(self, node: Node) -> str:
        """Place an agent, and wait until it has spoken; returns its name."""
        agent = f"agent-{next(_NUMBERS)}"
        self.transport.place(agent, node.id)
        self.until(lambda: self.said.get(agent))
        return agent

    def ask(self, agent: str, what: bytes) -> bytes:
        """The next answer of an agent."""
        count = len(self.said[agent])
        self.transport.send(agent, what)
        self.until(lambda: len(self.said[agent]) > count)
        return self.said[agent][-1]

    def remove_all(self) -> None:
        """Remove what is placed."""
        for agent, _ in self.placed:
            self.transport.remove(agent)
        self.until(lambda: {agent for agent, _ in self.placed} <= self.lost.keys())


def never() -> bool:
    """Nobody gives up."""
    return False


@contextmanager
def leading(ray: RayNodes, job: str, epoch: int = 1, resource: str = "") -> Iterator[Leader]:
    """A leader in the cluster that sees its nodes."""
    leader = Leader(ray, job, epoch, resource)
    try:
        leader.transport.join(60.0, print, never)
        leader.transport.begin(leader)
        leader.until(lambda: leader.nodes)
        yield leader
    finally:
        leader.transport.close()
        assert not psutil.pid_exists(leader.transport.helper_pid)


@pytest.fixture
def leader(ray: RayNodes, request: pytest.FixtureRequest) -> Iterator[Leader]:
    with leading(ray, request.node.name) as one:
        yield one
        one.remove_all()


def _helper(leader: Leader) -> psutil.Process:
    return psutil.Process(leader.transport.helper_pid)


def test_agents_run_on_the_nodes_they_are_placed_on(ray: RayNodes, leader: Leader) -> None:
    assert len(leader.nodes) == len(ray.marks)
    agents = [leader.place(node) for node in leader.nodes]
    assert leader.placed == [
        (agent, node.id) for agent, node in zip(agents, leader.nodes, strict=True)
    ]
    raylets = [
        psutil.Process(int(leader.said[agent][0])).parent().parent()  # type: ignore[union-attr]
        for agent in agents
    ]
    for node, raylet in zip(leader.nodes, raylets, strict=True):
        assert raylet is not None
        assert f"--node_id={node.id}" in " ".join(raylet.cmdline())


def test_an_agent_and_its_relay_are_as_urgent_as_the_node_of_ray(
    ray: RayNodes, leader: Leader
) -> None:
    """Ray gives actors a niceness of 15; what they start inherits it."""
    agent = leader.place(leader.nodes[0])
    process = psutil.Process(int(leader.said[agent][0]))
    relay = process.parent()
    assert relay is not None
    wanted = ray.process(ray.marks[0], "raylet").nice()
    assert process.nice() == wanted
    threads = {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in relay.threads()}
    assert threads == {wanted}


def test_payloads_of_any_size_reach_an_agent_and_come_back_in_order(leader: Leader) -> None:
    agent = leader.place(leader.nodes[-1])
    large = os.urandom(3 << 20)
    assert leader.ask(agent, large) == b"echo " + large
    leader.transport.send(agent, b"count")
    leader.until(lambda: leader.said[agent][-1] == b"999")
    assert leader.said[agent][2:] == [b"%d" % number for number in range(1000)]


def test_an_agent_has_the_environment_of_its_host_and_the_directory_of_the_leader(
    leader: Leader,
) -> None:
    agent = leader.place(leader.nodes[0])
    there = ast.literal_eval(leader.ask(agent, b"environment").decode())
    assert there["RAY_AUTH_TOKEN"] == TOKEN
    assert there.get("OMP_NUM_THREADS") == os.environ.get("OMP_NUM_THREADS")  # Ray sets 1
    assert "LD_PRELOAD" not in there
    assert leader.ask(agent, b"directory") == str(Path.cwd()).encode()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_helper_that_is_killed_or_hangs_is_replaced_and_agents_stay(
    leader: Leader, number: signal.Signals
) -> None:
    agent = leader.place(leader.nodes[-1])
    before = _helper(leader)
    leader.transport.send(agent, b"count")  # answered by nobody, or to nobody
    before.send_signal(number)
    leader.until(lambda: not before.is_running())
    late = leader.place(leader.nodes[0])  # asked for while no helper is there
    assert leader.ask(agent, b"still there") == b"echo still there"
    assert leader.ask(late, b"and this") == b"echo and this"
    assert [name for name, _ in leader.placed] == [agent, late]
    assert [notice.event for notice in leader.notices] == ["ray-helper-replaced"]
    assert leader.lost == {}
    assert leader.cluster_losses == []


def test_a_helper_is_not_blamed_for_a_pause_of_both(leader: Leader) -> None:
    agent = leader.place(leader.nodes[0])
    helper = _helper(leader)
    helper.suspend()
    time.sleep(_SILENCE + 2.0)  # the main loop does not turn either
    helper.resume()
    leader.until(lambda: leader.ask(agent, b"still there") == b"echo still there")
    assert helper.is_running()
    assert leader.notices == []


def test_nothing_that_an_agent_says_is_lost_with_the_helper(leader: Leader) -> None:
    agent = leader.place(leader.nodes[-1])
    leader.transport.send(agent, b"count")
    leader.until(lambda: len(leader.said[agent]) > 1)
    _helper(leader).kill()
    leader.until(lambda: leader.said[agent][-1] == b"999")
    assert {b"%d" % number for number in range(1000)} <= set(leader.said[agent])


def test_the_end_of_an_agent_or_of_its_relay_is_told(leader: Leader) -> None:
    exits, relayed, removed = (leader.place(leader.nodes[1]) for _ in range(3))
    pids = {agent: int(leader.said[agent][0]) for agent in (exits, relayed, removed)}
    leader.transport.send(exits, b"exit")
    relay = psutil.Process(pids[relayed]).parent()
    assert relay is not None
    relay.kill()
    leader.transport.remove(removed)
    leader.until(lambda: len(leader.lost) == 3)
    assert leader.lost[exits] == "its agent has ended (exit code 3)"
    assert "died" in leader.lost[relayed]
    for pid in pids.values():
        assert eventually(lambda pid=pid: not psutil.pid_exists(pid))  # type: ignore[misc]


def test_agents_survive_a_leader_that_is_killed_and_its_helper_does_not(ray: RayNodes) -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", _LEADS_UNTIL_KILLED, ray.address],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert leader.stdout is not None
    helper = int(leader.stdout.readline())
    leader.kill()
    leader.communicate()
    assert eventually(lambda: not psutil.pid_exists(helper))
    with leading(ray, "killed", 2) as successor:
        successor.until(lambda: successor.placed)
        successor.transport.send("left-behind", b"hello")
        # What the leader that died may not have heard comes first.
        successor.until(lambda: b"echo hello" in successor.said.get("left-behind", []))
        successor.remove_all()


_LEADS_UNTIL_KILLED = """
import sys
from types import SimpleNamespace
from tests.fleet.test_ray_transport import Leader, never
leader = Leader(SimpleNamespace(address=sys.argv[1]), "killed")
leader.transport.join(60.0, print, never)
leader.transport.begin(leader)
leader.until(lambda: leader.nodes)
leader.transport.place("left-behind", leader.nodes[0].id)
leader.until(lambda: leader.placed)
print(leader.transport.helper_pid, flush=True)
leader.until(lambda: False)
"""


def test_an_agent_that_cannot_be_placed_is_lost(leader: Leader) -> None:
    leader.transport.place("nowhere", "0" * 56)
    leader.until(lambda: "nowhere" in leader.lost)
    assert "doesn't exist any more" in leader.lost["nowhere"]


def test_an_agent_follows_the_leader_with_the_higher_epoch(ray: RayNodes) -> None:
    with leading(ray, "two-leaders", 1) as old:
        agent = old.place(old.nodes[1])
        with leading(ray, "two-leaders", 2) as new:
            new.until(lambda: new.placed)
            assert new.placed == old.placed
            new.said[agent] = []
            assert new.ask(agent, b"who leads") == b"echo who leads"
            old.until(lambda: agent in old.lost)
            assert old.lost[agent] == "a leader of epoch 2 commands this agent"
            assert new.ask(agent, b"and now") == b"echo and now"
            new.remove_all()


def test_a_host_without_supervise_is_named_as_such(
    ray: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Ray lets workers import from the folder of the leader
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    ours = Path(psutil.__file__).parents[1]  # with Ray; supervise is elsewhere, as in a checkout
    (packages / "ours.pth").write_text(str(ours))
    mark = ray.start(python=tmp_path / "venv/bin/python")
    with leading(ray, "bare") as leader:
        for node in leader.nodes:
            leader.transport.place(f"bare-{leader.nodes.index(node)}", node.id)
        leader.until(lambda: len(leader.placed) + len(leader.lost) == len(leader.nodes))
        leader.remove_all()
    ray.kill(mark)
    problem = "the Python that runs Ray there has no supervise"
    (agent,) = (agent for agent, why in leader.lost.items() if why == problem)
    assert "install supervise" in leader.remedies[agent]


def test_agents_of_another_job_are_not_seen(ray: RayNodes, leader: Leader) -> None:
    leader.place(leader.nodes[0])
    with leading(ray, "another-job") as other:
        mine = other.place(other.nodes[0])
        assert [agent for agent, _ in other.placed] == [mine]
        other.remove_all()


def test_a_node_that_is_drained_or_vanishes_is_told(ray: RayNodes, leader: Leader) -> None:
    others = {node.id for node in leader.nodes}
    only_joins = ray.start(num_cpus=0)
    mark = ray.start()
    leader.until(lambda: len(leader.nodes) > len(others))
    (node,) = (node for node in leader.nodes if node.id not in others)
    ray.kill(only_joins)
    agent = leader.place(node)
    subprocess.run(
        [
            *(sys.executable, "-P", "-m", "ray.scripts.scripts", "drain-node"),
            *("--address", ray.address, "--node-id", node.id),
            *("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"),
            *("--deadline-remaining-seconds", "600"),
        ],
        env={**os.environ, "RAY_AUTH_MODE": "token"},
        capture_output=True,
        check=True,
    )
    leader.until(lambda: any(node.draining for node in leader.nodes))
    assert [one.id for one in leader.nodes if one.draining.startswith("Ray drains it until")] == [
        node.id
    ]
    ray.process(mark, "raylet").kill()
    leader.until(lambda: agent in leader.lost)
    assert eventually(lambda: not psutil.pid_exists(int(leader.said[agent][0])))
    ray.kill(mark)
    leader.until(lambda: {node.id for node in leader.nodes} == others)


def test_a_head_that_does_not_answer_is_told_and_agents_stay(ray: RayNodes, leader: Leader) -> None:
    agent = leader.place(leader.nodes[-1])
    head = ray.process(ray.marks[0], "gcs_server")
    seen, leader.nodes = leader.nodes, ()
    head.suspend()
    try:
        leader.until(lambda: leader.cluster_losses)
        assert leader.ask(agent, b"without a head") == b"echo without a head"
    finally:
        head.resume()
    leader.until(lambda: leader.nodes)
    assert set(leader.nodes) == set(seen)
    assert leader.cluster_losses == ["the head of the Ray cluster does not answer"]


@pytest.mark.parametrize("token", ["another-token-than-that-of-the-cluster", None])
def test_a_cluster_with_another_token_refuses(
    ray: RayNodes, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    if token is not None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    leader = Leader(ray, "stranger")
    with pytest.raises(ClusterRefusedError, match="does not accept the token of this host: put"):
        leader.transport.join(60.0, print, never)
    leader.transport.close()


def test_a_cluster_without_a_token_is_used_and_told_and_one_of_another_version_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")  # no token is there
    with ray_nodes(is_open=True) as ray:
        ray.start()
        with leading(ray, "open") as leader:
            assert [notice.event for notice in leader.notices] == ["ray-cluster-open"]
        subprocess.run([sys.executable, "-P", "-c", _AGES, ray.address], check=True)
        leader = Leader(ray, "version")
        with pytest.raises(
            ClusterRefusedError, match=r"has another Ray or Python: .*Ray: 2\.49\.0"
        ):
            leader.transport.join(60.0, print, never)
        leader.transport.close()


_AGES = """
import json, sys
from ray._common.usage.usage_lib import get_cluster_metadata
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
versions = {**get_cluster_metadata(client), "ray_version": "2.49.0"}
client.internal_kv_put(b"CLUSTER_METADATA", json.dumps(versions).encode(), True, b"cluster")
"""


def test_an_address_where_nothing_answers_is_unreachable() -> None:
    with socket.socket() as taken:  # bound, so nothing else listens there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster = Cluster(address, "supervise-nowhere", 1, str(Path.cwd()))
        transport = RayTransport(cluster, Reactor(SystemClock()), print)
        told: list[Notice] = []
        began = time.monotonic()
        with pytest.raises(
            ClusterUnreachableError, match=f"answers at {address}: nothing listens there"
        ):
            transport.join(8.0, told.append, never)
        assert time.monotonic() - began < 16.0
        transport.close()
        (notice,) = told
        assert notice.event == "cluster-awaited"
        assert f"waiting for the Ray cluster at {address}" in notice


# --- accelerators ---------------------------------------------------------------------------------


@pytest.fixture
def slices(ray: RayNodes) -> Iterator[RayNodes]:
    """Beside the other nodes, two hosts of a TPU slice, in imitation: what Ray knows of one are
    labels and resources."""
    marks = [
        ray.start(
            resources={"TPU": 4, **({"TPU-v4-16-head": 1} if not place else {})},
            labels={
                "ray.io/tpu-slice-name": "a-slice",
                "ray.io/tpu-worker-id": str(place),
                "ray.io/tpu-topology": "2x2x2",
                "ray.io/tpu-pod-type": "v4-16",
            },
        )
        for place in range(2)
    ]
    yield ray
    for mark in marks:
        ray.kill(mark)


def test_a_slice_is_reserved_as_a_whole_and_given_back_with_its_last_agent(
    slices: RayNodes, leader: Leader
) -> None:
    leader.until(lambda: len([node for node in leader.nodes if node.slice]) == 2)
    hosts = {node.place_in_slice: node for node in leader.nodes if node.slice == "a-slice"}
    first = leader.place(hosts[1])
    with leading(slices, "another-job") as other:
        other.until(lambda: len(other.nodes) == len(leader.nodes))
        other.transport.place("too-late", hosts[0].id)
        other.until(lambda: "too-late" in other.lost)
        assert other.lost["too-late"] == (
            "Ray has not reserved TPU slice a-slice within 10 s: another job may use a part of it"
        )
    there = ast.literal_eval(leader.ask(first, b"environment").decode())
    assert there.get("TPU_VISIBLE_CHIPS") == os.environ.get("TPU_VISIBLE_CHIPS")  # Ray sets it
    second = leader.place(hosts[0])
    assert dict(leader.placed) == {first: hosts[1].id, second: hosts[0].id}
    _helper(leader).kill()
    leader.remove_all()
    with leading(slices, "next-job", resource="TPU") as other:
        other.until(lambda: set(other.nodes) == set(hosts.values()))
        other.place(hosts[0])
        other.remove_all()
