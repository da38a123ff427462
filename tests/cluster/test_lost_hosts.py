"""A job on several hosts loses ranks, agents, hosts, networks, leaders and the way to them.

The hosts are namespaces of this machine with a real Ray; see `hosts`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.cluster.hosts import HostOfTests, Network, may_have_hosts, network
from tests.cluster.ray_hosts import ENV, RayOnHosts
from tests.running import JSON, Result, Running, eventually, runs

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not may_have_hosts(), reason="network namespaces are not allowed"),
]
RANK = str(Path(__file__).with_name("toy_rank.py"))
LOST_AFTER = 4.0
STEPS = 300


class Cluster:
    """Hosts with Ray; the first one is the head, and has the leader. `count` hosts train.

    `head_trains`: the head's host may be one of them.
    """

    def __init__(self, hosts: Network, model_dir: Path, *, head_trains: bool = True) -> None:
        self._network = hosts
        self.model_dir = model_dir
        self.leader = hosts.host()
        self.ray = RayOnHosts(self.leader)
        self._head_cpus = int(head_trains)
        self.start_head()
        self.others: dict[str, HostOfTests] = {}

    def start_head(self) -> None:
        """Start the head of the cluster."""
        self.ray.start(self.leader, self._head_cpus)

    def join(self, number: int) -> None:
        """Add hosts."""
        for _ in range(number):
            host = self._network.host()
            self.others[host.name] = host
            self.ray.start(host)

    @property
    def all(self) -> dict[str, HostOfTests]:
        """All hosts by name."""
        return {self.leader.name: self.leader, **self.others}

    def run(self, count: int, spares: int = 0, pace: str = "", **restart: Any) -> Running:
        """Start the supervisor on the head's host; `pace` is the seconds of a step."""
        autorestart = {"max_num_restarts": 1, "standby": "off", **restart}
        hosts = {"engine": "ray", "count": count, "spares": spares, "lost_after": LOST_AFTER}
        init = {
            "model_dir": str(self.model_dir),
            "hosts": {**hosts, "address": self.ray.address},
            "devices": {"platform": "cpu", "count": count},
            "autorestart": autorestart,
        }
        argv = [sys.executable, RANK, "{model_dir}", str(STEPS), *([pace] if pace else [])]
        command = {"argv": argv, "success": {"step": STEPS}, "elastic": True}
        config = self.model_dir.with_name("trainer.yaml")
        config.write_text(yaml.safe_dump({"trainer": {"init": init, "command": command}}))
        process = self.leader.start(
            [sys.executable, "-P", "-m", "supervisor", "run", *JSON, str(config)],
            ENV,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return Running(process, self.model_dir)

    def ranks(self, host: HostOfTests) -> list[psutil.Process]:
        """The living ranks on a host."""
        found = [psutil.Process(pid) for pid in host.processes() if runs(pid)]
        return [each for each in found if RANK in each.cmdline()]

    def working(self) -> HostOfTests:
        """A host other than the leader's on which a rank runs."""
        return next(host for host in self.others.values() if self.ranks(host))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with network() as hosts:
        yield Cluster(hosts, tmp_path / "run")


@pytest.fixture
def cluster_beside_its_head(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose head trains nothing, as that of KubeRay."""
    with network() as hosts:
        yield Cluster(hosts, tmp_path / "run", head_trains=False)


def taken(model_dir: Path) -> dict[int, list[tuple[int, int, float]]]:
    """What each rank took: attempt, step, time."""
    return {
        int(path.name.removeprefix("taken-")): [
            (int(attempt), int(step), float(at))
            for attempt, step, at in map(str.split, path.read_text().splitlines())
        ]
        for path in model_dir.glob("taken-*")
    }


def assert_one_attempt_at_a_time(model_dir: Path) -> None:
    """No rank took a step of an attempt after one of a later attempt began."""
    rows = sorted((at, attempt) for rank in taken(model_dir).values() for attempt, _, at in rank)
    attempts = [attempt for _, attempt in rows]
    assert attempts == sorted(attempts)


def finished(running: Running, cluster: Cluster) -> Result:
    """Wait for the end, and check what is true of every job that succeeds."""
    result = running.result(300)
    assert result.code == 0, result.out + result.err
    assert "Traceback" not in result.err
    assert (cluster.model_dir / "checkpoints" / str(STEPS)).is_dir()
    assert_one_attempt_at_a_time(cluster.model_dir)
    assert not [each for host in cluster.all.values() for each in cluster.ranks(host)]
    return result


def trains(running: Running, attempt: int = 1) -> None:
    """Wait until a checkpoint of the attempt is committed."""
    running.wait_for_event("checkpoint-committed", attempt=attempt)


def test_a_rank_dies(cluster: Cluster) -> None:
    cluster.join(1)
    running = cluster.run(2)
    trains(running)
    (rank,) = cluster.ranks(cluster.others["h2"])
    rank.kill()
    running.wait_for_event("attempt-started", 60, attempt=2)
    result = finished(running, cluster)
    first, second = result.summary["attempts"]
    assert first["failure"]["rule"] in ("sigkill", "sigkill-or-memory")
    assert second["status"] == "SUCCEEDED"


def test_a_host_vanishes_and_a_spare_takes_over(cluster: Cluster) -> None:
    cluster.join(2)
    running = cluster.run(2, spares=1)
    trains(running)
    lost = cluster.working()
    at = time.time()
    lost.vanish()
    running.wait_for_event("attempt-started", 60, attempt=2)
    assert time.time() - at < 3 * (LOST_AFTER + 2)
    result = finished(running, cluster)
    assert result.summary["attempts"][0]["failure"]["charge"] == "nothing"


def test_a_network_is_cut_and_a_spare_takes_over(cluster: Cluster) -> None:
    cluster.join(2)
    running = cluster.run(2, spares=1)
    trains(running)
    lost = cluster.working()
    lost.cut()
    at = time.time()
    assert eventually(lambda: not cluster.ranks(lost), LOST_AFTER + 2)
    assert time.time() - at <= LOST_AFTER + 1
    running.wait_for_event("attempt-started", 60, attempt=2)
    finished(running, cluster)


def test_a_frozen_host_that_thaws_commits_nothing(cluster: Cluster) -> None:
    cluster.join(2)
    running = cluster.run(2, spares=1)
    trains(running)
    frozen = cluster.working()
    frozen.freeze()
    running.wait_for_event("attempt-started", 60, attempt=2)
    frozen.thaw()
    assert eventually(lambda: not cluster.ranks(frozen), 1.0)
    finished(running, cluster)


def test_a_host_that_is_drained_is_left_after_a_save(cluster: Cluster) -> None:
    cluster.join(2)
    running = cluster.run(2, spares=1, pace="0.2")
    trains(running)
    drained = cluster.working()
    cluster.ray.drain(drained)
    running.wait_for_event("attempt-started", 60, attempt=2)
    drained.vanish()
    result = finished(running, cluster)
    first, second = result.summary["attempts"]
    assert (first["status"], second["status"]) == ("MADE_WAY", "SUCCEEDED")
    assert "Ray drains it" in result.event("workers-told-to-stop")["reason"]
    assert not result.has_event("host-lost")
    assert result.event("attempt-stopped", attempt=1)["lost_steps"] == 0
    assert not result.has_event("budget-used")


def test_a_head_that_is_lost_has_the_job_save_and_wait_for_a_cluster(
    cluster_beside_its_head: Cluster,
) -> None:
    """The head's host stays, and the leader on it; another head takes the place of the first."""
    cluster = cluster_beside_its_head
    cluster.join(2)
    running = cluster.run(2, pace="0.2", wait_for_capacity=300)
    trains(running)
    cluster.ray.end(cluster.leader)
    running.wait_for_event("cluster-lost", 60)
    running.wait_for_event("capacity-awaited", 120)
    cluster.start_head()
    for host in cluster.others.values():
        cluster.ray.end(host)
        cluster.ray.start(host)
    result = finished(running, cluster)
    assert result.summary["attempts"][0]["status"] == "MADE_WAY"
    assert result.event("attempt-stopped", attempt=1)["lost_steps"] == 0
    assert not result.has_event("budget-used")


def test_the_leader_is_killed_and_the_same_command_goes_on(cluster: Cluster) -> None:
    cluster.join(1)
    running = cluster.run(2)
    trains(running)
    inside = [pid for pid in cluster.leader.processes() if _is_supervisor(pid)]
    assert inside
    for pid in inside:
        os.kill(pid, signal.SIGKILL)
    running.process.wait(30)
    other = cluster.others["h2"]
    assert eventually(lambda: not cluster.ranks(other), LOST_AFTER + 3)
    finished(cluster.run(2), cluster)


def _is_supervisor(pid: int) -> bool:
    try:
        line = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return line[1:5] == ["-P", "-m", "supervisor", "run"]


def test_half_of_the_hosts_go_at_once_and_the_job_shrinks(cluster: Cluster) -> None:
    cluster.join(3)
    running = cluster.run(4, min_num_devices=1, wait_for_replacement=0)
    trains(running)
    for name in ("h3", "h4"):
        cluster.others[name].vanish()
    running.wait_for_event("attempt-started", 60, attempt=2)
    result = finished(running, cluster)
    assert len(result.summary["attempts"]) == 2, "one decision, one restart"
    assert result.summary["attempts"][1]["num_devices"] == 2
