"""`supervise gang` on hosts of their own, which are namespaces of this machine: see `hosts`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from tests.cluster.cluster import hurried
from tests.cluster.hosts import HostOfTests, may_have_hosts, network
from tests.running import JSON, PATIENCE, Running

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not may_have_hosts(), reason="network namespaces are not allowed"),
]
RANK = str(Path(__file__).with_name("toy_rank.py"))
STEPS = 150


@pytest.fixture
def hosts() -> Iterator[tuple[HostOfTests, HostOfTests]]:
    with network() as made:
        yield made.host(), made.host()


def config(folder: Path) -> Path:
    """A job on two hosts, in a cluster that the launcher makes."""
    init = {
        "model_dir": str(folder / "run"),
        "hosts": {"engine": "ray", "count": 2, "lost_after": 4},
        "devices": {"platform": "cpu", "count": 2},
        "autorestart": {
            "max_num_restarts": 0,
            "min_num_devices": 2,
            "standby": "off",
            "wait_for_capacity": 300,
        },
    }
    argv = [sys.executable, RANK, "{model_dir}", str(STEPS), "0.2"]
    command = {"argv": argv, "success": {"step": STEPS}, "elastic": True}
    path = folder / "trainer.yaml"
    path.write_text(yaml.safe_dump({"trainer": {"init": init, "command": command}}))
    return path


def process_of(host: HostOfTests, name: str) -> psutil.Process:
    """The process with this name on a host."""
    for pid in host.processes():
        with suppress(psutil.NoSuchProcess):
            if (found := psutil.Process(pid)).name() == name:
                return found
    raise AssertionError(f"no {name} runs on {host.name}")


def test_a_head_that_dies_costs_no_more_than_the_steps_since_the_last_checkpoint(
    hosts: tuple[HostOfTests, HostOfTests], tmp_path: Path
) -> None:
    """With the head, Ray's node on its host ends too, and with that the workers there. So nothing
    can be saved, but the same leader goes on in the next cluster."""
    whole = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-P", "-m", "supervisor", "gang", *JSON, str(config(tmp_path))]
    command += ["--head", hosts[0].address, "--launch", "one"]

    def start(index: int, output: int) -> subprocess.Popen[bytes]:
        return hosts[index].start(
            [*command, "--index", str(index)],
            whole,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )

    leader, member = start(0, subprocess.PIPE), start(1, subprocess.DEVNULL)
    running = Running(leader, tmp_path / "run")
    running.wait_for_event("checkpoint-committed")
    process_of(hosts[0], "gcs_server").send_signal(signal.SIGKILL)
    running.wait_for_event("attempt-started", PATIENCE, attempt=2)
    result = hurried(running)
    assert (result.code, member.wait(60)) == (0, 0), result.out
    assert [each["status"] for each in result.summary["attempts"]] == ["FAILED", "SUCCEEDED"]
    assert not result.has_event("budget-used")
