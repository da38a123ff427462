"""Runs the quickstart's trainer under a contestant, and observes it from outside.

All contestants run the same program with the same model and data, from `examples/quickstart.yaml`.
Peers get every cache that they can use: JAX's, and the compiled steps that our trainer keeps.
Contestants with `is_default` get nothing that is not required.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

import yaml

from benchmarks.contest import ROOT, EventReader, run_contestant, supervise_command, wait_for
from benchmarks.peers import BASH, TRAINING_PEERS, Peer, UnavailableError
from supervisor.config.plan import PhasePlan
from supervisor.config.problems import ConfigError
from supervisor.prepare import prepare
from supervisor.protocol.environment import EXECUTABLES, NUM_CPU_DEVICES
from tests.running import attempt_records

_WITNESS = ROOT / "benchmarks" / "witness"
_START = 300.0
"""Seconds within which a trainer must complete a step; it may have to compile first."""


@dataclass(frozen=True)
class Contestant:
    """A peer; or, if `peer` is None, supervise with these sections of its config."""

    name: str
    peer: Peer | None = None
    autorestart: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Mapping[str, Any] = field(default_factory=dict)
    init: Mapping[str, Any] = field(default_factory=dict)
    is_default: bool = False
    """Whether it runs with its own defaults: a peer gets no cache, supervise keeps its backoff."""

    @property
    def has_standby(self) -> bool:
        """Whether it has a standby process."""
        return self.peer is None and self.autorestart.get("standby") != "off"


PEERS = tuple(Contestant(name, peer) for name, peer in TRAINING_PEERS.items())
"""Peers with the same caches as supervise."""
DEFAULTS = Contestant("defaults", is_default=True)
BASH_DEFAULTS = Contestant("bash_defaults", BASH, is_default=True)


@dataclass(frozen=True)
class Step:
    """A completed optimizer step."""

    at: float
    """Time of its end, in seconds of the monotonic clock."""
    pid: int
    number: int


class Training:
    """A running training, seen from outside."""

    def __init__(self, process: Popen[bytes], folder: Path) -> None:
        self.folder = folder
        self.pid = process.pid
        self._process = process
        self._record = folder / "steps"
        self._event_reader = EventReader(folder / "output")

    def steps(self) -> list[Step]:
        """Returns all completed steps so far, in order of time."""
        if not self._record.exists():
            return []
        whole = self._record.read_text().rpartition("\n")[0]
        words = [line.split() for line in whole.splitlines()]
        return [Step(float(at), int(pid), int(number)) for at, pid, number in words]

    def wait_for_step(
        self, number: int, *, since: float = 0.0, not_by: Collection[int] = ()
    ) -> Step:
        """Wait for a step; returns the first one that has at least this `number`, ended after the
        time `since`, and was made by a process not in `not_by`."""

        def found() -> Iterator[Step]:
            for step in self.steps():
                if step.number >= number and step.at > since and step.pid not in not_by:
                    yield step

        self.wait_for(f"step {number}", lambda: any(found()))
        return next(found())

    def wait_for(self, what: str, condition: Callable[[], bool], timeout: float = _START) -> None:
        """Wait until `condition` holds.

        Raises:
            FailedError: it does not in time.
        """
        wait_for(what, condition, self._process, timeout)

    def events(self, name: str | None = None, **keys: object) -> list[dict[str, Any]]:
        """See `EventReader.events`; empty under a peer."""
        return self._event_reader.events(name, **keys)

    def wait_for_event(
        self, name: str, times: int = 1, timeout: float = _START, **keys: object
    ) -> None:
        """Wait until there were `times` events with this name and these keys.

        Raises:
            FailedError: there were fewer in time.
        """
        what = f"event {name}, {times} times"
        self.wait_for(what, lambda: len(self.events(name, **keys)) >= times, timeout)

    def last_of(self, pid: int) -> Step:
        """Returns the last step that the process `pid` has completed."""
        return next(step for step in reversed(self.steps()) if step.pid == pid)

    def recoveries(self) -> list[dict[str, Any]]:
        """Returns supervise's account of each recovery, from summary.json."""
        found: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob("run/*_restartable/summary.json")):
            attempts = attempt_records(path.parent)
            found += [attempt["recovery"] for attempt in attempts if "recovery" in attempt]
        return found

    def kill_trainer(self) -> Step:
        """Send SIGKILL to the process that completed the last step, if it lives; returns that
        step."""
        last = self.steps()[-1]
        with suppress(ProcessLookupError):
            os.kill(last.pid, signal.SIGKILL)
        return last


@contextmanager
def training(
    contestant: Contestant, folder: Path, *, every: int, max_steps: int, log_every: int = 1
) -> Iterator[Training]:
    """Train under `contestant` in the empty `folder` for the block, with a checkpoint every `every`
    steps and a printed line every `log_every` steps.

    Raises:
        UnavailableError: the contestant cannot be installed, or supervise refuses its config.
    """
    (folder / "steps").touch()
    path = os.pathsep.join(filter(None, (str(_WITNESS), str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = {"PYTHONPATH": path, "BENCHMARK_WITNESS": str(folder / "steps")}
    config = _config(contestant, folder, every, max_steps, log_every)
    command = supervise_command(config, folder)
    try:
        plan = prepare(folder / "trainer.yaml", ()).plans[0]
    except ConfigError as error:
        raise UnavailableError("; ".join(str(problem) for problem in error.problems)) from error
    if contestant.peer is not None:
        params = folder / "params.yaml"
        params.write_text(yaml.safe_dump(plan.params, sort_keys=False))
        argv = [part.replace("{params}", str(params)) for part in plan.argv]
        command = contestant.peer.prepared(argv, folder)
        environ |= {**plan.env, **_devices(plan)}
        environ |= {} if contestant.is_default else {**cache(folder), **_executables(folder)}
    with run_contestant(command, environ, folder) as process:
        yield Training(process, folder)


def _config(
    contestant: Contestant, folder: Path, every: int, max_steps: int, log_every: int
) -> dict[str, Any]:
    config = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text(encoding="utf-8"))
    trainer: dict[str, Any] = config["trainer"]
    trainer["faults"] = []
    del trainer["fit"]["validation"]
    init = trainer["init"]
    init["model_dir"] = str(folder / "run")
    init["loop"] |= {"max_steps": max_steps, "log_every": log_every}
    init["checkpoint"] = {"every": every, "keep": 2, **contestant.checkpoint}
    at_once = {} if contestant.is_default else {"backoff": {"first": 0.0}}
    init["autorestart"] = {"max_num_restarts": 1000, **at_once, **contestant.autorestart}
    init |= contestant.init
    return {"trainer": trainer}


def _devices(plan: PhasePlan) -> dict[str, str]:
    """Returns the environment that gives a peer's trainer as many devices as supervise gives."""
    return {NUM_CPU_DEVICES: str(plan.num_devices)}


def _executables(folder: Path) -> dict[str, str]:
    """Returns the environment that tells our trainer where to keep its compiled steps."""
    return {EXECUTABLES: str(folder / "compile_cache" / "executables")}


def cache(folder: Path) -> dict[str, str]:
    """Returns the environment that enables JAX's compilation cache, as a peer's user could."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compile_cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
