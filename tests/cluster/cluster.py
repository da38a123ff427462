"""A cluster of hosts with Ray, on which the tests run jobs, and what is true of each job.

One cluster serves many tests: `with_hosts` replaces what the test before has broken.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.cluster.hosts import HostOfTests, Network
from tests.cluster.ray_hosts import ENV, RayOnHosts
from tests.cluster.toy_rank import HURRY, state_in, undisturbed
from tests.running import JSON, PATIENCE, Result, Running, eventually, runs

RANK = str(Path(__file__).with_name("toy_rank.py"))
LOST_AFTER = 4.0
STEPS = 2000
"""So many that no job ends before a test lets it (`finished`)."""


@dataclass
class Cluster:
    """Hosts with Ray; the first one is the head, and has the leader.

    `head_trains`: the head's host may be one of those that train.
    """

    network: Network
    model_dir: Path
    """That of the present test."""
    head_trains: bool = True
    python: str = sys.executable
    """See `RayOnHosts.python`."""
    others: dict[str, HostOfTests] = field(default_factory=dict)
    """The hosts beside the head's, by name."""
    _supervisors: list[tuple[HostOfTests, Running]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leader = self.network.host()
        self.ray = RayOnHosts(self.leader, self.python)
        self.start_head()

    def start_head(self) -> None:
        """Start the head of the cluster."""
        self.ray.start(self.leader, int(self.head_trains))

    def join(self, number: int) -> list[HostOfTests]:
        """Add hosts; their Ray joins the cluster soon."""
        hosts = [self.network.host() for _ in range(number)]
        for host in hosts:
            self.others[host.name] = host
            self.ray.start(host)
        return hosts

    def with_hosts(self, number: int) -> None:
        """Wait until `number` hosts, and no others, are in the cluster beside the head's."""
        for host in [each for each in self.others.values() if not self._is_whole(each)]:
            self._remove(host)
        for host in list(self.others.values())[number:]:
            self._remove(host)
        self.join(number - len(self.others))
        self.ray.wait_for_nodes(self.all.values())

    def _is_whole(self, host: HostOfTests) -> bool:
        return not host.is_broken and self.ray.started[host.name].poll() is None

    def _remove(self, host: HostOfTests) -> None:
        del self.others[host.name]
        self.network.remove(host)

    @property
    def children(self) -> set[int]:
        """The children of this process that hosts and Ray need."""
        hosts = {host.init.pid for host in self.network.hosts}
        return hosts | {process.pid for process in self.ray.processes}

    @property
    def all(self) -> dict[str, HostOfTests]:
        """All hosts by name."""
        return {self.leader.name: self.leader, **self.others}

    def run(
        self,
        count: int,
        spares: int = 0,
        pace: str = "",
        *,
        on: HostOfTests | None = None,
        model_dir: Path | None = None,
        lost_after: float = LOST_AFTER,
        **restart: Any,
    ) -> Running:
        """Start the supervisor of a job on `count` hosts, on a host (None: the head's).

        `pace` is the seconds of a step.
        """
        folder = model_dir or self.model_dir
        init = {
            "model_dir": str(folder),
            "devices": {"platform": "cpu", "count": count},
            "autorestart": {"max_num_restarts": 1, "standby": "off", **restart},
            **self.hosts_of_a_job(count, spares, lost_after),
        }
        argv = [sys.executable, RANK, "{model_dir}", str(STEPS), *([pace] if pace else [])]
        command = {"argv": argv, "success": {"step": STEPS}, "elastic": True, "preload": ["csv"]}
        return self.supervise({"trainer": {"init": init, "command": command}}, folder, on)

    def hosts_of_a_job(self, count: int, spares: int, lost_after: float) -> dict[str, Any]:
        """The section `hosts` of a job's config."""
        size = {"count": count, "spares": spares, "lost_after": lost_after}
        return {"hosts": {"engine": "ray", **size, "address": self.ray.address}}

    def supervise(self, config: object, model_dir: Path, on: HostOfTests | None = None) -> Running:
        """Start a supervisor on a host (None: the head's)."""
        host = on or self.leader
        path = model_dir.with_name(f"{model_dir.name}.yaml")
        path.write_text(yaml.safe_dump(config))
        process = host.start(
            [sys.executable, "-P", "-m", "supervisor", "run", *JSON, str(path)],
            ENV,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        running = Running(process, model_dir)
        self._supervisors.append((host, running))
        return running

    def ranks(self, host: HostOfTests, model_dir: Path | None = None) -> list[psutil.Process]:
        """The living ranks of a job on a host; None: of that of the test."""
        folder = str(model_dir or self.model_dir)
        return [each for each in _alive(host) if {RANK, folder} <= set(_line(each))]

    def working(self) -> HostOfTests:
        """A host other than the leader's on which a rank runs. A standby would count as one."""
        return next(host for host in self.others.values() if self.ranks(host))

    def host_of_a_rank(self, running: Running) -> HostOfTests:
        """A host other than the leader's on which the newest attempt runs, as the job says."""
        used = running.events("devices-probed")[-1]["units"]
        return next(host for host in self.others.values() if host.address in used)

    def supervisor(self) -> psutil.Process:
        """The process of the only supervisor, which runs on the head's host."""
        (found,) = (each for each in _alive(self.leader) if _is_supervisor(_line(each)))
        return found

    def kill_supervisors(self) -> None:
        """Kill the supervisors that run, and wait for their ends."""
        for host, running in self._supervisors:
            if running.process.poll() is None:
                for each in _alive(host):
                    if _is_supervisor(_line(each)):
                        each.kill()
                running.process.wait(PATIENCE)

    @contextmanager
    def of_a_test(self, model_dir: Path) -> Iterator[Cluster]:
        """Serve a test, whose jobs are over afterwards."""
        self.model_dir = model_dir
        self._supervisors.clear()
        try:
            yield self
        finally:
            self.kill_supervisors()

    def left_of_jobs(self) -> list[str]:
        """The command lines of what lives of any job, on the hosts that are reached."""
        reached = [host for host in self.all.values() if not host.is_broken]
        lines = [_line(each) for host in reached for each in _alive(host)]
        return [" ".join(line) for line in lines if any(map(_is_ours, line))]


def _alive(host: HostOfTests) -> list[psutil.Process]:
    found = []
    for pid in host.processes():
        with suppress(psutil.NoSuchProcess):
            if runs(pid):
                found.append(psutil.Process(pid))
    return found


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_ours(word: str) -> bool:
    return word == RANK or word.startswith(("supervisor.", "ray::Relay"))


def _is_supervisor(line: list[str]) -> bool:
    return line[1:5] == ["-P", "-m", "supervisor", "run"]


def processes_with(host: HostOfTests, word: str) -> list[psutil.Process]:
    """The living processes on a host with a word in their command line that begins like this."""
    return [each for each in _alive(host) if any(w.startswith(word) for w in _line(each))]


def agent_on(host: HostOfTests) -> psutil.Process:
    """The process of the only agent on a host."""
    (found,) = processes_with(host, "supervisor.engines.fleet.agent_process")
    return found


def helper_of(cluster: Cluster) -> psutil.Process:
    """The process of the only leader that speaks to Ray."""
    (found,) = processes_with(cluster.leader, "supervisor.engines.fleet.ray_helper")
    return found


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


def hurried(running: Running) -> Result:
    """Let the ranks take the steps that are left without pauses, and wait for the end."""
    (running.model_dir / HURRY).touch()
    return running.result(300)


def finished(running: Running, cluster: Cluster) -> Result:
    """Let the job end, and check what is true of every job that succeeds."""
    result = hurried(running)
    assert_succeeded(result, cluster)
    return result


def assert_succeeded(result: Result, cluster: Cluster) -> None:
    """The job has the state of an undisturbed run, never ran twice at once, and no process of any
    job is left."""
    assert result.code == 0, result.out + result.err
    assert "Traceback" not in result.err
    assert state_in(result.model_dir / "checkpoints", STEPS) == undisturbed(STEPS)
    assert_one_attempt_at_a_time(result.model_dir)
    assert eventually(lambda: not cluster.left_of_jobs(), PATIENCE), cluster.left_of_jobs()


def trains(running: Running, attempt: int = 1) -> None:
    """Wait until a checkpoint of the attempt is committed."""
    running.wait_for_event("checkpoint-committed", PATIENCE, attempt=attempt)
