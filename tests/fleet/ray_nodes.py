"""A small real Ray: some nodes of one cluster, all on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from supervisor.engines.fleet.agent_process import MACHINE
from tests.running import PATIENCE, eventually, marked

TOKEN = "the-token-of-the-cluster-of-these-tests"
MARK = "RAY_NODE_OF_TESTS"
"""In the environment of all processes of a node: which one it is. Each node is a machine."""


@dataclass
class RayNodes:
    """The nodes, by the marks in the environment of their processes; the first one is the head."""

    folder: Path
    marks: list[str] = field(default_factory=list)
    is_open: bool = False
    """Whether the cluster has no token."""
    _vanished: bool = False
    """Whether the head may still take a node that was killed for alive."""

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return (self.folder / "ray_current_cluster").read_text().strip()

    def start(
        self,
        *,
        num_cpus: int = 1,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        python: str | Path = sys.executable,
    ) -> str:
        """Start one more node, with this Python; returns its mark."""
        mark = uuid.uuid4().hex
        where = [f"--address={self.address}"] if self.marks else _HEAD
        started = subprocess.run(
            [
                *(python, "-P", "-m", "ray.scripts.scripts", "start", *where),
                *(f"--num-cpus={num_cpus}", "--object-store-memory=80000000", "--log-style=record"),
                *("--include-log-monitor=false", "--disable-usage-stats"),
                *([f"--temp-dir={self.folder}"] if not self.marks else []),
                *([f"--resources={json.dumps(resources)}"] if resources else []),
                *([f"--labels={','.join(map('='.join, labels.items()))}"] if labels else []),
            ],
            env={
                **os.environ,
                **TUNED,
                **self._token(),
                MARK: mark,
                MACHINE: mark,
                **(environ or {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        assert started.returncode == 0, (started.stdout + started.stderr).decode()
        self.marks.append(mark)
        return mark

    def _token(self) -> dict[str, str]:
        if self.is_open:
            return {"RAY_AUTH_MODE": "disabled"}
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}

    def kill(self, mark: str) -> None:
        """Kill all processes of a node, like a machine that vanishes."""
        while found := marked(f"{MARK}={mark}"):
            for pid in found:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()
            for pid in found:
                with suppress(ChildProcessError):  # an orphan that has become ours
                    os.waitpid(pid, 0)
            eventually(lambda: not marked(f"{MARK}={mark}"), 1.0)
        self.marks.remove(mark)
        self._vanished = True

    def settle(self) -> None:
        """Wait until the head knows of no node but those that run.

        It takes seconds to miss a machine that vanished, and lists it as alive so long.
        """
        if not self._vanished:
            return
        subprocess.run(
            [sys.executable, "-P", "-c", _SETTLED, self.address, str(len(self.marks))],
            env={**os.environ, **self._token()},
            timeout=PATIENCE,
            check=True,
        )
        self._vanished = False

    def process(self, mark: str, name: str) -> psutil.Process:
        """The process of a node with this name."""
        found = map(psutil.Process, marked(f"{MARK}={mark}"))
        return next(process for process in found if process.name() == name)


_SETTLED = """
import sys, time, ray
ray.init(sys.argv[1], log_to_driver=False, configure_logging=False)
while sum(node["Alive"] for node in ray.nodes()) != int(sys.argv[2]):
    time.sleep(0.1)
"""
_HEAD = ["--head", "--port=0", "--include-dashboard=false"]
TUNED = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


@contextmanager
def ray_nodes(*, is_open: bool = False) -> Iterator[RayNodes]:
    """Yield a cluster without nodes. At the end all processes of its nodes are killed."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets have short names only
    nodes = RayNodes(folder, is_open=is_open)
    try:
        yield nodes
    finally:
        for mark in nodes.marks[::-1]:
            nodes.kill(mark)
        shutil.rmtree(folder, ignore_errors=True)
