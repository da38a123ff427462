"""A real Ray over the hosts: a head and nodes that join, as `ray start --block` on each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.cluster.hosts import HostOfTests
from tests.fleet.ray_nodes import TOKEN, TUNED

PORT = 6379
ENV = {**TUNED, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
"""Of whoever belongs to the cluster."""


@dataclass
class RayOnHosts:
    """The head, the other nodes, and their processes by the names of the hosts."""

    head: HostOfTests
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return f"{self.head.address}:{PORT}"

    def start(self, host: HostOfTests, env: Mapping[str, str] | None = None) -> None:
        """Start Ray on a host; returns at once."""
        where = (
            ["--head", f"--port={PORT}", "--include-dashboard=false"]
            if host is self.head
            else [f"--address={self.address}"]
        )
        self.started[host.name] = host.start(
            [
                *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", *where),
                *(f"--node-ip-address={host.address}", "--num-cpus=1", "--log-style=record"),
                *("--object-store-memory=80000000", "--include-log-monitor=false"),
                "--disable-usage-stats",
            ],
            {**ENV, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
