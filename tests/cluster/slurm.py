"""A real Slurm over the hosts of the tests: a controller, and nodes that share only files."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.hosts import HostOfTests, network
from tests.running import eventually

_SYSTEM = "/usr/sbin:/sbin"
"""Where Debian has the daemons."""
_CONFIG = """
ClusterName=tests
SlurmctldHost={controller}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerParameters=sched_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
SlurmdTimeout=10
InactiveLimit=0
KillWait=60
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""A requeued job starts again once its credential has expired, so that expires soon."""


def has_slurm() -> bool:
    """Whether Slurm is installed (Debian: slurm-wlm)."""
    return all(_path(name) is not None for name in ("slurmctld", "slurmd", "sbatch"))


def _path(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_SYSTEM)


@dataclass
class Slurm:
    """The daemons on their hosts. Batch scripts find `supervise`, which is that of the tests."""

    folder: Path
    controller: HostOfTests
    nodes: dict[str, HostOfTests]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Start all daemons, and wait until all nodes are idle."""
        lines = [f"NodeName={n} NodeAddr={h.address} CPUs=1" for n, h in self.nodes.items()]
        where = f"{self.controller.name}({self.controller.address})"
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(
            _CONFIG.format(controller=where, folder=self.folder, nodes="\n".join(lines))
        )
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # none is used
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "supervise").write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m supervisor "$@"\n'
        )
        (programs / "supervise").chmod(0o755)
        self._start(self.controller, "slurmctld", "-D")
        for name, host in self.nodes.items():
            (self.folder / name).mkdir()
            self._start(host, "slurmd", "-D", "-N", name)
        assert eventually(lambda: self._states() == {"idle"}, 60), self._log()

    def _start(self, host: HostOfTests, daemon: str, *options: str) -> None:
        path = _path(daemon)
        assert path is not None
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        self.daemons.append(
            host.start([path, *options], self._environ, stderr=subprocess.DEVNULL, **quiet)
        )

    @property
    def _environ(self) -> Mapping[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def ask(self, *argv: str) -> str:
        """Run a command of Slurm on the controller's host; returns what it prints."""
        whole = {**os.environ, **self._environ}
        done = subprocess.run(
            self.controller.inside(*argv), env=whole, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _states(self) -> set[str]:
        try:
            return set(self.ask("sinfo", "--noheader", "--format=%t").split())
        except AssertionError:  # the controller does not answer yet
            return set()

    def _log(self) -> str:
        log = self.folder / "controller.log"
        return log.read_text() if log.exists() else "the controller has not started"

    def submit(self, script: Path, *options: str) -> str:
        """Submit a batch script; returns the number of the job."""
        output = f"--output={script.with_suffix('.out')}"
        where = f"--chdir={script.parent}"
        return self.ask("sbatch", "--parsable", output, where, *options, str(script))

    def shows(self, job: str) -> dict[str, str]:
        """What Slurm says of a job, by key."""
        words = self.ask("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def limit(self, job: str, minutes: int | None) -> None:
        """Let a job run for so many whole minutes; None: for ever."""
        limit = "UNLIMITED" if minutes is None else str(minutes)
        self.ask("scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")

    def minutes_of(self, job: str) -> int:
        """For how many whole minutes a job has run."""
        hours, minutes, _ = map(int, self.shows(job)["RunTime"].split(":"))
        return 60 * hours + minutes

    def is_over(self, job: str) -> bool:
        """Whether a job has ended, and does not start again."""
        return self.shows(job)["JobState"] not in {
            "PENDING",
            "RUNNING",
            "COMPLETING",
            "CONFIGURING",
            "REQUEUED",
        }

    def hosts_of(self, job: str) -> list[HostOfTests]:
        """The hosts of a job that runs, the first one first."""
        nodes = self.ask("scontrol", "show", "hostnames", self.shows(job)["NodeList"])
        return [self.nodes[name] for name in nodes.split()]


@contextmanager
def slurm(folder: Path, size: int) -> Iterator[Slurm]:
    """Yield a Slurm with so many nodes; at the end nothing of it is left."""
    with network() as hosts:
        controller = hosts.host()
        nodes = {host.name: host for host in (hosts.host() for _ in range(size))}
        made = Slurm(folder, controller, nodes)
        made.start()
        yield made
