"""Measures a job on four hosts: namespaces of this machine, with a real Ray.

    python -m benchmarks.many_hosts [--quick] [--json FILE]

It needs root. The program is `many_hosts_rank.py`, four processes that take steps together:

* `kill_hosts`: SIGKILL of a process on one of four hosts -> the next step. `kill_one_host`: the
  same with four workers on one of these hosts, without Ray. Measured in turns; no standby.
* `vanished`: a host loses its power, and a spare takes over -> the next step. `beyond_fence`: the
  same without `lost_after` (4 s here) and without the median of `kill_hosts`.
* `kill_jax_trainer`: as `kill_hosts`, under Ray Train's JaxTrainer with its defaults, on four other
  hosts after ours are gone. There the program is a function in actors of Ray.
* `supervised_over_bare`: steps per second under supervise, over those of the same four processes
  on the same four hosts, started by hand.
* `agent_pss`: agent and guard on one host, MB (PSS). Other hosts are on the same machine, so they
  share the pages of the interpreter with more processes than on a machine of their own:
  `agent_whole` counts what both of them share with others once, and whole. `relay_pss` is the Ray
  actor that carries their messages, a process of Ray's own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.contest import FailedError
from benchmarks.peers import JAX_TRAINER, UnavailableError
from benchmarks.report import Report, options
from tests.cluster.cluster import Cluster, agent_on, processes_with
from tests.cluster.hosts import HostOfTests, may_have_hosts, network
from tests.cluster.ray_hosts import ENV

_PROGRAM = str(Path(__file__).with_name("many_hosts_rank.py"))
_TRAIN_WORKER = "ray::RayTrainWorker"
"""The process of Ray Train in which the program is."""
_HOSTS = 4
_LOST_AFTER = 4.0
_PATIENCE = 180.0
_WARM = 30
"""Steps before anything is measured."""
_SETTLED = 8.0
"""Seconds of training before a fault: by then spares hear their leader, and where supervise probes
devices, a warm process waits to do it."""
_LOOK = 0.005


@dataclass(frozen=True)
class Step:
    """A step that all processes have completed."""

    at: float
    """When, in seconds of the monotonic clock, which all hosts share."""
    attempt: int
    number: int


@dataclass
class Found:
    """The measurements."""

    seconds: dict[str, list[float]] = field(
        default_factory=lambda: {
            "kill_hosts": [],
            "kill_one_host": [],
            "vanished": [],
            "kill_jax_trainer": [],
        }
    )
    rates: dict[str, dict[int, float]] = field(
        default_factory=lambda: {"bare": {}, "supervised": {}}
    )
    """Steps per second, by number of the round."""
    memory: dict[str, list[float]] = field(
        default_factory=lambda: {"agent_pss": [], "agent_whole": [], "relay_pss": []}
    )


@dataclass
class Training:
    """A training on the hosts."""

    record: Path
    cluster: Cluster

    def steps(self) -> list[Step]:
        """Returns the completed steps so far."""
        if not self.record.exists():
            return []
        lines = self.record.read_text().rpartition("\n")[0].splitlines()
        return [
            Step(float(at), int(attempt), int(number))
            for at, attempt, number in map(str.split, lines)
        ]

    def wait_for_step(self, number: int, attempt: int) -> Step:
        """Returns the first step that has at least this number, of this attempt or a later one."""
        found: list[Step] = []

        def is_there() -> bool:
            found[:] = [
                step for step in self.steps() if step.number >= number and step.attempt >= attempt
            ]
            return bool(found)

        wait_for(f"step {number} of attempt {attempt}", is_there)
        return found[0]

    @property
    def attempt(self) -> int:
        """The attempt that has made the last step."""
        return self.steps()[-1].attempt

    def recovery(self, fault: Callable[[], None]) -> float:
        """Train for a while; returns the seconds from a fault then to the next step."""
        time.sleep(_SETTLED)
        attempt, began = self.attempt, time.monotonic()
        fault()
        seconds = self.wait_for_step(1, attempt + 1).at - began
        self.wait_for_step(_WARM, attempt + 1)
        return seconds

    def rate(self, seconds: float) -> float:
        """Returns the steps per second of a window of so many seconds.

        Raises:
            FailedError: another attempt began, or there were hardly any steps.
        """
        began = time.monotonic()
        time.sleep(seconds)
        counted = [step for step in self.steps() if step.at >= began]
        if len(counted) < 2 or len({step.attempt for step in counted}) > 1:
            raise FailedError("it does not train without a pause")
        return (counted[-1].number - counted[0].number) / (counted[-1].at - counted[0].at)


def main() -> None:
    """Measure in turns and report."""
    given = options(__doc__)
    rounds, kills, windows, seconds = (1, 1, 1, 5.0) if given.quick else (2, 3, 6, 8.0)
    report = Report("many_hosts")
    if not may_have_hosts():
        report.left_out["all"] = "network namespaces are not allowed here"
        report.finish(given.json)
        return
    found = Found()
    with network() as hosts, tempfile.TemporaryDirectory(dir="/tmp") as place:
        cluster = Cluster(hosts, Path(place))
        folders = (Path(place) / f"{number}" for number in range(1_000_000))
        cluster.with_hosts(_HOSTS - 1)
        for turn in range(windows):
            for name in ("bare", "supervised")[:: 1 if turn % 2 else -1]:
                with _or_left_out(report, f"{name}_{turn}"):
                    _measure_steps(cluster, next(folders), name, turn, seconds, found)
        for turn in range(rounds):
            with _or_left_out(report, f"kill_hosts_{turn}"):
                _measure_kills(cluster, next(folders), found, kills)
            with _or_left_out(report, f"kill_one_host_{turn}"):
                _measure_kills_on_one_host(cluster, next(folders), found, kills)
        with _or_left_out(report, "vanished"):
            _measure_lost_hosts(cluster, next(folders), found, rounds * kills)
    with _or_left_out(report, "kill_jax_trainer"):
        _measure_jax_trainer(found, rounds * kills)
    conclude(report, found)
    report.finish(given.json)


def conclude(report: Report, found: Found) -> None:
    """Add the figures to `report`."""
    for name, values in found.seconds.items():
        report.spread(name, "s", values)
    report.ratio("kill_over_one_host", "kill_hosts_s", "kill_one_host_s")
    report.ratio("jax_trainer_over_ours", "kill_jax_trainer_s", "kill_hosts_s")
    if (kill := report.figures.get("kill_hosts_s")) is not None:
        beyond = [each - kill - _LOST_AFTER for each in found.seconds["vanished"]]
        report.spread("beyond_fence", "s", beyond)
    for name, rates in found.rates.items():
        report.spread(name, "steps_per_s", list(rates.values()))
    report.paired("supervised_over_bare", found.rates["supervised"], found.rates["bare"])
    for name, values in found.memory.items():
        report.spread(name, "mb", values)


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds.

    Raises:
        FailedError: it does not in time.
    """
    end = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise FailedError(f"no {what} within {_PATIENCE:g} s")
        time.sleep(_LOOK)


@contextmanager
def _or_left_out(report: Report, what: str) -> Iterator[None]:
    """Name what fails in the report, and go on: what was measured until then stays."""
    try:
        yield
    except (FailedError, UnavailableError) as error:
        report.left_out[what] = str(error)


def _measure_steps(
    cluster: Cluster, folder: Path, name: str, turn: int, seconds: float, found: Found
) -> None:
    """Measure steps per second in a round, `bare` or `supervised`, and then the memory."""
    how = _bare if name == "bare" else _on_hosts
    with how(cluster, folder) as run:
        found.rates[name][turn] = run.rate(seconds)
        if name == "supervised":
            for host in cluster.others.values():
                _measure_memory(host, found.memory)


def _measure_memory(host: HostOfTests, memory: Mapping[str, list[float]]) -> None:
    agent = agent_on(host)
    guards = [each for each in agent.children() if "supervisor.host.guard" in str(each.cmdline())]
    parts = [each.memory_full_info() for each in (agent, *guards)]
    memory["agent_pss"].append(sum(each.pss for each in parts) / 1e6)
    shared = max(each.rss - each.uss for each in parts)
    memory["agent_whole"].append((sum(each.uss for each in parts) + shared) / 1e6)
    relays = processes_with(host, "ray::Relay")
    memory["relay_pss"].append(sum(each.memory_full_info().pss for each in relays) / 1e6)


def _measure_kills(cluster: Cluster, folder: Path, found: Found, kills: int) -> None:
    with _on_hosts(cluster, folder) as run:
        for _ in range(kills):
            victim = _ranks(list(cluster.others.values())[-1])[0]
            found.seconds["kill_hosts"].append(run.recovery(victim.kill))


def _measure_kills_on_one_host(cluster: Cluster, folder: Path, found: Found, kills: int) -> None:
    with _supervised(cluster, folder, {"workers": _HOSTS}) as run:
        for _ in range(kills):
            victim = max(_ranks(cluster.leader), key=lambda each: each.create_time())
            found.seconds["kill_one_host"].append(run.recovery(victim.kill))


def _measure_lost_hosts(cluster: Cluster, folder: Path, found: Found, times: int) -> None:
    cluster.with_hosts(_HOSTS)
    with _on_hosts(cluster, folder, spares=1) as run:
        for _ in range(times):
            wait_for("agents everywhere", lambda: _all_have_agents(cluster))
            lost = next(host for host in cluster.others.values() if _ranks(host))
            found.seconds["vanished"].append(run.recovery(lost.vanish))
            cluster.with_hosts(_HOSTS)


def _measure_jax_trainer(found: Found, kills: int) -> None:
    with network() as hosts, tempfile.TemporaryDirectory(dir="/tmp") as place, ExitStack() as stack:
        folder = Path(place)
        record = folder / "steps"
        python = JAX_TRAINER.prepared((), folder)[0]
        cluster = Cluster(hosts, folder, python=python)
        cluster.with_hosts(_HOSTS - 1)
        argv = (cluster.ray.address, str(record), str(_HOSTS))
        command = JAX_TRAINER.prepared(argv, folder)
        driver = cluster.leader.start(
            command,
            ENV,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(driver.wait)
        stack.callback(driver.kill)
        run = Training(record, cluster)
        run.wait_for_step(_WARM, 1)
        for _ in range(kills):
            victim = processes_with(list(cluster.others.values())[-1], _TRAIN_WORKER)[0]
            found.seconds["kill_jax_trainer"].append(run.recovery(victim.kill))


def _all_have_agents(cluster: Cluster) -> bool:
    return all(
        processes_with(host, "supervisor.engines.fleet.agent_process")
        for host in cluster.all.values()
    )


def _ranks(host: HostOfTests) -> list[psutil.Process]:
    return processes_with(host, _PROGRAM)


@contextmanager
def _bare(cluster: Cluster, folder: Path) -> Iterator[Training]:
    """Train without supervise on all hosts for the block."""
    folder.mkdir()
    record = folder / "steps"
    with ExitStack() as stack:
        for number, host in enumerate(cluster.all.values()):
            env = {
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": "1",
                "JAX_COORDINATOR_ADDRESS": f"{cluster.leader.address}:7777",
                "JAX_NUM_PROCESSES": str(_HOSTS),
                "JAX_PROCESS_ID": str(number),
            }
            process = host.start(
                [sys.executable, "-P", _PROGRAM, str(record)],
                env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(_kill_ranks, host)
        run = Training(record, cluster)
        run.wait_for_step(_WARM, 0)
        yield run


def _kill_ranks(host: HostOfTests) -> None:
    for each in _ranks(host):
        each.kill()


@contextmanager
def _on_hosts(cluster: Cluster, folder: Path, spares: int = 0) -> Iterator[Training]:
    """Train under supervise on four hosts for the block."""
    with _supervised(cluster, folder, cluster.hosts_of_a_job(_HOSTS, spares, _LOST_AFTER)) as run:
        yield run


@contextmanager
def _supervised(cluster: Cluster, folder: Path, init: Mapping[str, Any]) -> Iterator[Training]:
    """Train under supervise for the block."""
    folder.mkdir()
    record = folder / "steps"
    restart = {"max_num_restarts": 1000, "backoff": {"first": 0.0}, "standby": "off"}
    config = {
        "trainer": {
            "init": {
                "model_dir": str(folder / "run"),
                "devices": {"platform": "cpu", "count": _HOSTS},
                "autorestart": {**restart, "min_num_devices": _HOSTS},
                **init,
            },
            "command": {"argv": [sys.executable, _PROGRAM, str(record)]},
        }
    }
    with cluster.of_a_test(folder / "run"):
        cluster.supervise(config, folder / "run")
        run = Training(record, cluster)
        run.wait_for_step(_WARM, 1)
        yield run
        cluster.supervisor().terminate()
        wait_for("end of the job", lambda: not cluster.left_of_jobs())


if __name__ == "__main__":
    main()
