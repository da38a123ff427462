"""Our trainer on several hosts ends with the bits of an undisturbed run, whatever they lose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.cluster import Cluster, processes_with
from tests.cluster.hosts import HostOfTests, may_have_hosts
from tests.running import PATIENCE, Running, eventually
from tests.training.configs import tiny
from tests.training.harness import assert_same_bits, final_state

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not may_have_hosts(), reason="network namespaces are not allowed"),
]
STEPS = 17
LOST_AFTER = 10.0
"""Longer than where ranks need no jax: a machine that is busy with it answers late."""


def two_hosts(cluster: Cluster, model_dir: Path, *faults: dict[str, Any]) -> dict[str, Any]:
    """The config of a training on two hosts, with a spare."""
    job = tiny(model_dir / "checkpoints", max_steps=STEPS)
    del job["trainer"]["fit"]["validation"]
    init = job["trainer"]["init"]
    del init["checkpoint"]["directory"]
    init |= {
        "model_dir": str(model_dir),
        "devices": {"platform": "cpu", "count": 2},
        "autorestart": {"max_num_restarts": 1, "standby": "off", "prefetch": False},
        **cluster.hosts_of_a_job(2, 1, LOST_AFTER),
    }
    return {**job, "trainer": {**job["trainer"], "faults": list(faults)}}


def test_after_a_killed_rank_and_a_lost_host_it_ends_with_the_bits_of_an_undisturbed_run(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.with_hosts(2)
    whole = two_hosts(cluster, tmp_path / "whole")
    assert ended(cluster.supervise(whole, tmp_path / "whole"), cluster) == [1]

    killed = {"step": 7, "signal": "SIGKILL", "rank": 0}
    stopped = {"step": 12, "signal": "SIGSTOP", "rank": 1}
    struck = two_hosts(cluster, tmp_path / "run", killed, stopped)
    running = cluster.supervise(struck, tmp_path / "run")
    running.wait_for_event("workers-started", PATIENCE, attempt=2)
    assert eventually(lambda: any(map(is_stopped, cluster.all.values())), PATIENCE)
    lost = next(host for host in cluster.all.values() if is_stopped(host))
    assert lost is not cluster.leader
    lost.vanish()
    assert ended(running, cluster) == [1, 2, 3]
    assert_same_bits(
        final_state(struck, tmp_path / "run", STEPS), final_state(whole, tmp_path / "whole", STEPS)
    )


def is_stopped(host: HostOfTests) -> bool:
    """Whether a rank on a host stands still."""
    ranks = processes_with(host, "trainer")
    return any(each.status() == psutil.STATUS_STOPPED for each in ranks)


def ended(running: Running, cluster: Cluster) -> list[int]:
    """Wait for the end of a job that succeeds and leaves no process; returns its attempts."""
    result = running.result(300)
    assert result.code == 0, result.out + result.err
    assert eventually(lambda: not cluster.left_of_jobs(), PATIENCE), cluster.left_of_jobs()
    return [each["attempt"] for each in result.summary["attempts"]]
