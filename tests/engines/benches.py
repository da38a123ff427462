"""Engines to be tried by `test_contract`, each with a machine below it and means to disturb that.

A bench for another engine is one more subclass of `Bench`, and one more line in `ENGINES`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import TypeVar

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.config.command import SuccessConfig
from supervisor.config.plan import PhasePlan
from supervisor.core.events import Event, WorkersStarted
from supervisor.core.policy import PhasePolicy, RestartPolicy
from supervisor.diagnosis.rules import RULES
from supervisor.diagnosis.success import Success
from supervisor.engines.engine import Engine
from supervisor.engines.launch import Launch
from supervisor.engines.local import LocalEngine
from supervisor.engines.probing.device_probe import DeviceProbe
from supervisor.engines.this_host import ThisHost
from supervisor.protocol import simulated
from supervisor.protocol.committed import MARKER
from supervisor.protocol.messages import StepMessage, encode
from tests.running import PATIENCE, shared_guard
from tests.simulation.loop import FaultyLoop
from tests.simulation.machine import SimulatedMachine
from tests.simulation.scenario import NONE, Faults, Scenario
from tests.simulation.true_host import TrueHost

E = TypeVar("E", bound=Event)


class Bench(ABC):
    """An engine, and the machine on which its workers run until they are told to end."""

    engine: Engine
    launch: Launch
    """Attempt 3 of phase 0."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        """All that the engine has posted."""

    def of(self, kind: type[E]) -> list[E]:
        """What was posted of one kind, in order."""
        return [event for event in self.told if isinstance(event, kind)]

    def first(self, kind: type[E], fits: Callable[[E], bool] = lambda event: True) -> E:
        """The first such event, which is waited for."""
        self.until(lambda: any(map(fits, self.of(kind))))
        return next(filter(fits, self.of(kind)))

    @abstractmethod
    def turn(self, seconds: float) -> None:
        """Let the main loop turn for so long."""

    @abstractmethod
    def until(self, happened: Callable[[], bool]) -> None:
        """Let the main loop turn until that has happened."""

    @abstractmethod
    def strike(self, rank: int) -> None:
        """Kill a worker from outside."""

    @abstractmethod
    def commit(self, step: int) -> None:
        """Have a new committed checkpoint in the phase."""

    @abstractmethod
    def living(self) -> int:
        """How many processes of the attempt truly live."""

    @property
    @abstractmethod
    def step(self) -> int | None:
        """The last step that the workers have said to be complete."""

    def close(self) -> None:  # noqa: B027 (most have nothing to end)
        """End what the bench has started beside the workers."""


class OnThisHost(Bench):
    """Real processes: each says that step 7 is complete, and waits to be ended."""

    def __init__(
        self, folder: Path, workers: int = 1, *, ends: bool = False, starts: bool = True
    ) -> None:
        """`ends`: the workers end well by themselves; not `starts`: there is no such program."""
        super().__init__()
        argv = program_in(folder, ends=ends, starts=starts)
        self._folder = folder
        self._clock = SystemClock()
        self._reactor = Reactor(self._clock)
        lost = {"lost": list(_UNITS)}  # so a look at them is answered without a process
        (folder / simulated.FILE).write_text(json.dumps(lost))
        machine = ThisHost(shared_guard(), folder / simulated.FILE)
        probe = DeviceProbe(self._reactor, self._clock, machine, {})
        self.engine = LocalEngine(
            self._reactor, self._clock, machine, os.environ, None, NoCache(), probe
        )
        self.launch = launch_in(folder, argv, workers)
        self.launch.directory.mkdir()

    def turn(self, seconds: float) -> None:
        """See `Bench`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.told += self._reactor.wait(self._clock.now() + min(0.05, seconds))

    def until(self, happened: Callable[[], bool]) -> None:
        """See `Bench`."""
        end = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < end, self.told
            self.told += self._reactor.wait(self._clock.now() + 0.05)

    def strike(self, rank: int) -> None:
        """See `Bench`."""
        os.kill(self._pids[rank], signal.SIGKILL)

    def commit(self, step: int) -> None:
        """See `Bench`."""
        checkpoint = self._folder / "checkpoints" / "0" / str(step)
        checkpoint.mkdir(parents=True)
        (checkpoint / MARKER).touch()

    def living(self) -> int:
        """See `Bench`."""
        return sum(Path(f"/proc/{pid}").exists() for pid in self._pids)

    @property
    def step(self) -> int | None:
        """See `Bench`."""
        return 7

    @property
    def _pids(self) -> tuple[int, ...]:
        return tuple(pid for started in self.of(WorkersStarted) for pid in started.pids)


class OnTheSimulatedMachine(Bench):
    """The same engine on the machine of the simulation, on which nothing goes wrong by itself."""

    def __init__(
        self, folder: Path, workers: int = 1, *, ends: bool = False, starts: bool = True
    ) -> None:
        """See `OnThisHost`."""
        super().__init__()
        scenario = _calm(workers, ends=ends, faults=NONE if starts else Faults(launch_fails=1.0))
        self._host = TrueHost(scenario, Random(7), _ignored)
        self._machine = SimulatedMachine(self._host, scenario.policy, _ignored, lambda group: None)
        self._host.watcher = self._machine
        self._loop = FaultyLoop(
            self._host, self._machine, float("inf"), _ignored, lambda event: None
        )
        probe = DeviceProbe(self._loop, self._host.clock, self._machine, {})
        self.engine = LocalEngine(
            self._loop, self._host.clock, self._machine, {}, None, NoCache(), probe
        )
        self.launch = launch_in(folder, ("train",), workers)

    def turn(self, seconds: float) -> None:
        """See `Bench`."""
        end = self._host.clock.now() + seconds
        while self._host.clock.now() < end:
            self.told += self._loop.wait(end)

    def until(self, happened: Callable[[], bool]) -> None:
        """See `Bench`."""
        for _ in range(10_000):
            if happened():
                return
            self.told += self._loop.wait(self._host.clock.now() + 1.0)
        raise AssertionError(self.told)

    def strike(self, rank: int) -> None:
        """See `Bench`."""
        self._host.kill_rank(self._host.groups[self.launch.attempt], rank)

    def stop_training(self) -> None:
        """Have the workers do nothing from now on, as if they were stuck."""
        self._host.groups[self.launch.attempt].stuck = True

    def leave_failure_record(self) -> None:
        """Have the first worker fail as if threads kept its process."""
        self._host.kept[str(self.launch.file(0, "failure.json"))] = b"{}"

    def commit(self, step: int) -> None:
        """See `Bench`."""
        self._host.work.commits(self.launch.phase, step)

    def living(self) -> int:
        """See `Bench`."""
        return sum(len(group.alive) for group in self._host.groups.values())

    @property
    def step(self) -> int | None:
        """See `Bench`."""
        return self._host.groups[self.launch.attempt].told_step


ENGINES: Mapping[str, Callable[..., Bench]] = {
    "this host": OnThisHost,
    "the simulated machine": OnTheSimulatedMachine,
}
_UNITS = ("0", "1")


class NoCache:
    """See `host_port.Compilations`: nothing is kept."""

    def environment(self, given: object) -> dict[str, str]:
        """See `host_port.Compilations`."""
        return {}

    def take_over(self) -> None:
        """See `host_port.Compilations`."""

    def finish_attempt(self) -> None:
        """See `host_port.Compilations`."""


def _ignored(text: str) -> None:
    """Nobody wants to know."""


def _calm(workers: int, *, ends: bool, faults: Faults) -> Scenario:
    return Scenario(
        policy=RestartPolicy((PhasePolicy("phase", 1, 1, Success()),)),
        faults=faults,
        benign=float("inf"),
        world_size=workers,
        num_steps=2 if ends else 10**6,
        commit_every=10**6,
        snapshot_every=None,
        adjustable=(),
        need=1,
        bad_steps=frozenset(),
        missing=frozenset(),
        max_skipped=0,
        too_small=frozenset(),
        too_small_for_sure=False,
        rules=RULES,
        standby="off",
        max_again=0,
        changes=0,
    )


def program_in(folder: Path, *, ends: bool, starts: bool) -> tuple[str, ...]:
    """The command line of a program that says that step 7 is complete: see `OnThisHost`."""
    said = encode(StepMessage(7)).decode().strip()
    program = folder / "train.sh"
    program.write_text(
        f"echo '{said}' > /proc/self/fd/$SUPERVISE_PROGRESS_FD\n"
        + ("" if ends else "exec sleep 1000\n")
    )
    return ("sh", str(program)) if starts else (str(folder / "missing"),)


def launch_in(folder: Path, argv: tuple[str, ...], workers: int) -> Launch:
    plan = PhasePlan(
        name="phase",
        argv=argv,
        env={},
        model_dir=folder,
        checkpoint_dir=folder / "checkpoints" / "0",
        params={},
        success=SuccessConfig(),
        success_is_default=True,
        is_command=True,
        progress_pattern=None,
        bootstrap=False,
        num_devices=2 * workers,
        global_batch=None,
        max_steps=None,
        faults=(),
        platform="cpu",
        standby="off",
        rungs=(2 * workers,),
        prefetch=False,
        units=_UNITS,
        workers=workers,
    )
    return Launch(
        job="0" * 12,
        lineage="0" * 12,
        attempt=3,
        phase=0,
        plan=plan,
        success=Success(),
        rules=RULES,
        model_dir=folder,
        directory=folder / "attempt3",
        params=folder / "params.yaml",
    )
