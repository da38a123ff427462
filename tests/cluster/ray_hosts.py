"""A real Ray over the hosts: a head and nodes that join, as `ray start --block` on each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.cluster.hosts import HostOfTests
from tests.fleet.ray_nodes import TOKEN, TUNED
from tests.running import PATIENCE

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

_NODES = """
import json, sys, time
from ray._raylet import GcsClient
from ray.core.generated import gcs_pb2
from ray.exceptions import RpcError

def alive():
    try:
        nodes = GcsClient(address=sys.argv[1]).get_all_node_info().values()
    except RpcError as error:  # the head is busy, or not there yet
        return [str(error)]
    return sorted(n.node_manager_address for n in nodes if n.state == gcs_pb2.GcsNodeInfo.ALIVE)

for line in sys.stdin:
    wanted, end = sorted(json.loads(line)), time.monotonic() + float(sys.argv[2])
    while (found := alive()) != wanted and time.monotonic() < end:
        time.sleep(0.05)
    print(json.dumps(found), flush=True)
"""


def _is_ray(command: Sequence[str]) -> bool:
    """Whether a process is a node of Ray, its head, or what starts them."""
    names = {Path(word).name for word in command[:4]}
    return not names.isdisjoint({"gcs_server", "raylet", "ray.scripts.scripts"})


@dataclass
class RayOnHosts:
    """The head, the other nodes, and their processes by the names of the hosts."""

    head: HostOfTests
    python: str = sys.executable
    """The Python that runs Ray on the hosts."""
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _nodes: subprocess.Popen[bytes] | None = None
    """The process that asks the head for its nodes."""

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return f"{self.head.address}:{PORT}"

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The processes outside of the hosts that belong to Ray."""
        nodes = [self._nodes] if self._nodes is not None else []
        return [*self.started.values(), *nodes]

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

    def raylet(self, host: HostOfTests) -> psutil.Process:
        """The process of Ray's node on a host."""
        found = map(psutil.Process, host.processes())
        return next(process for process in found if process.name() == "raylet")

    def wait_for_nodes(self, hosts: Iterable[HostOfTests]) -> None:
        """Wait until these hosts, and no others, are alive for the head."""
        if self._nodes is None:
            self._nodes = self.head.start(
                [sys.executable, "-P", "-c", _NODES, self.address, str(PATIENCE)],
                ENV,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        wanted = sorted(host.address for host in hosts)
        assert self._nodes.stdin is not None
        assert self._nodes.stdout is not None
        self._nodes.stdin.write(f"{json.dumps(wanted)}\n".encode())
        self._nodes.stdin.flush()
        assert json.loads(self._nodes.stdout.readline()) == wanted

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
                *(self.python, "-P", "-m", "ray.scripts.scripts", "start", "--block", *where),
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
