"""A real Ray over the hosts: a head and nodes that join, as `ray start --block` on each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.cluster.hosts import HostOfTests
from tests.fleet.ray_nodes import TOKEN, TUNED

PORT = 6379
ENV = {**TUNED, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
"""Of whoever belongs to the cluster."""


_DRAIN = """
import ray, sys, time
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2
head, address = sys.argv[1:]
ray.init(head, configure_logging=False, log_to_driver=False)
node = next(n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeManagerAddress"] == address)
why = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
end = int((time.time() + 600) * 1000)
accepted, reason = GcsClient(address=head).drain_node(node, why, "spot", end)
assert accepted, reason
"""


def _is_ray(command: Sequence[str]) -> bool:
    """Whether a process is a node of Ray, its head, or what starts them."""
    names = {Path(word).name for word in command[:4]}
    return not names.isdisjoint({"gcs_server", "raylet", "ray.scripts.scripts"})


@dataclass
class RayOnHosts:
    """The head, the other nodes, and their processes by the names of the hosts."""

    head: HostOfTests
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return f"{self.head.address}:{PORT}"

    def drain(self, host: HostOfTests) -> None:
        """Announce that a host goes in ten minutes."""
        self._on_head(sys.executable, "-P", "-c", _DRAIN, self.address, host.address)

    def end(self, host: HostOfTests) -> None:
        """Kill Ray on a host: its nodes and, on the first one, the head."""
        for pid in host.processes():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if _is_ray(process.cmdline()):
                    process.kill()

    def _on_head(self, *argv: str) -> None:
        whole = {**os.environ, **ENV}
        subprocess.run(self.head.inside(*argv), env=whole, check=True, capture_output=True)

    def start(self, host: HostOfTests, num_cpus: int = 1) -> None:
        """Start Ray on a host; returns at once. Without CPUs it only joins."""
        where = (
            ["--head", f"--port={PORT}", "--include-dashboard=false"]
            if host is self.head
            else [f"--address={self.address}"]
        )
        self.started[host.name] = host.start(
            [
                *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", *where),
                *(
                    f"--node-ip-address={host.address}",
                    f"--num-cpus={num_cpus}",
                    "--log-style=record",
                ),
                *("--object-store-memory=80000000", "--include-log-monitor=false"),
                "--disable-usage-stats",
            ],
            ENV,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
