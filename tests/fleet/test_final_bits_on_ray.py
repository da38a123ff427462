"""Our trainer on two Ray nodes ends with the bits of an undisturbed run, whatever it loses.

`tests/cluster/test_final_bits.py` does the same on hosts that vanish, which needs root.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fleet.ray_nodes import MARK, RayNodes
from tests.running import PATIENCE, Running, Start, eventually, marked
from tests.training.configs import tiny
from tests.training.harness import assert_same_bits, final_state

STEPS = 17
LOST_AFTER = 20.0
"""A machine that is busy with jax answers late, and no host is to be lost by that."""


def on_two_hosts(ray: RayNodes, model_dir: Path, *faults: dict[str, Any]) -> dict[str, Any]:
    """The config of a training on two hosts of the cluster, with a spare."""
    job = tiny(model_dir / "checkpoints", max_steps=STEPS)
    del job["trainer"]["fit"]["validation"]
    init = job["trainer"]["init"]
    del init["checkpoint"]["directory"]
    init |= {
        "model_dir": str(model_dir),
        "devices": {"platform": "cpu", "count": 2},
        "autorestart": {
            "max_num_restarts": 1,
            "min_num_devices": 2,
            "wait_for_capacity": 300,
            "standby": "off",
            "prefetch": False,
        },
        "hosts": {
            "engine": "ray",
            "count": 2,
            "spares": 1,
            "address": ray.address,
            "lost_after": LOST_AFTER,
        },
    }
    return {**job, "trainer": {**job["trainer"], "faults": list(faults)}}


@pytest.mark.slow
def test_after_a_killed_rank_and_a_lost_node_it_ends_with_the_bits_of_an_undisturbed_run(
    own_ray: RayNodes, start: Start, tmp_path: Path, unoptimised: dict[str, str]
) -> None:
    # The head has no rank, so the node of each may be lost.
    own_ray.start(num_cpus=0, environ=unoptimised)
    for _ in range(3):
        own_ray.start(environ=unoptimised)
    whole = on_two_hosts(own_ray, tmp_path / "whole")
    assert ended(start(whole)) == [1]

    killed = {"step": 7, "signal": "SIGKILL", "rank": 0}
    stopped = {"step": 12, "signal": "SIGSTOP", "rank": 1}
    struck = on_two_hosts(own_ray, tmp_path / "run", killed, stopped)
    job = start(struck)
    job.wait_for_event("workers-started", attempt=2)
    assert eventually(lambda: bool(stopped_on(own_ray)), PATIENCE)
    (lost,) = stopped_on(own_ray)
    own_ray.kill(lost)
    assert ended(job) == [1, 2, 3]
    assert_same_bits(
        final_state(struck, tmp_path / "run", STEPS), final_state(whole, tmp_path / "whole", STEPS)
    )


def stopped_on(ray: RayNodes) -> list[str]:
    """The nodes with a process that stands still."""
    return [
        mark
        for mark in ray.marks
        if any(
            psutil.pid_exists(pid) and psutil.Process(pid).status() == psutil.STATUS_STOPPED
            for pid in marked(f"{MARK}={mark}")
        )
    ]


def ended(job: Running) -> list[int]:
    """Wait for the end of a job that succeeds; returns its attempts."""
    result = job.result()
    assert result.code == 0, result.out + result.err
    return [event["attempt"] for event in result.events("attempt-started")]
