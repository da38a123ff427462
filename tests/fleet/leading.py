"""A leader with a real fleet engine, on the agents of a `Cluster`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.core.events import Event, Noticed, WorkersStarted
from supervisor.engines.fleet.fleet_engine import FleetEngine
from supervisor.engines.fleet.fleet_means import Leadership
from supervisor.engines.launch import Launch
from supervisor.engines.this_host import ThisHost
from supervisor.history.writer import writer
from tests.engines.benches import NoCache, launch_in
from tests.fleet.cluster import Cluster, Line
from tests.running import PATIENCE, shared_guard

E = TypeVar("E", bound=Event)

LOST_AFTER = 1.5
"""Short, for tests of the fence. On a busy machine a host may be lost by it for no reason."""


class Leader:
    """A leader, and what its engine has posted."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        epoch: int = 1,
        *,
        size: int,
        spares: int = 0,
        before: float = 0.0,
        announcer: str = "none",
        lost_after: float = LOST_AFTER,
        began: float | None = None,
    ) -> None:
        self.cluster, self.size = cluster, size
        self.clock = SystemClock()
        self.reactor = Reactor(self.clock)
        self.told: list[Event] = []
        owner = folder / "owner"
        owner.write_text(json.dumps({"token": "t" * 32}))
        leadership = Leadership(
            epoch,
            writer(),
            lost_after,
            f"job-{epoch}",
            str(owner),
            "t" * 32,
            before,
            announcer,
            began=began,
        )
        self.line = Line(cluster, self.reactor)
        self.engine = FleetEngine(
            self.line,
            self.reactor,
            self.clock,
            ThisHost(shared_guard(), folder / "none"),
            {},
            NoCache(),
            leadership,
            size + spares,
            lambda: None,
            wait_for_capacity=600.0,
        )

    def of(self, kind: type[E]) -> list[E]:
        """What was posted of one kind, in order."""
        return [event for event in self.told if isinstance(event, kind)]

    def first(self, kind: type[E], fits: Callable[[E], bool] = lambda event: True) -> E:
        """The first such event, which is waited for."""
        self.until(lambda: any(map(fits, self.of(kind))))
        return next(event for event in self.of(kind) if fits(event))

    def turn(self, seconds: float) -> None:
        """Lead for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.told += self.reactor.wait(self.clock.now() + min(0.05, seconds))

    def until(self, happened: Callable[[], bool]) -> None:
        """Lead until it has happened."""
        end = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < end, self.told
            self.told += self.reactor.wait(self.clock.now() + 0.02)

    def notices(self) -> list[str]:
        """The names of the notices so far."""
        return [told.text.event for told in self.of(Noticed)]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node of each rank."""
        return self.engine.nodes

    def start(self, launch: Launch) -> WorkersStarted:
        """Start an attempt once so many agents are there, and wait until it runs."""
        agents = self.cluster.agents
        self.until(lambda: sum(each.has_spoken for each in agents.values()) >= launch.world_size)
        launch.directory.mkdir(exist_ok=True)
        self.engine.start(launch)
        return self.first(WorkersStarted, lambda event: event.attempt == launch.attempt)


def launch_of(folder: Path, script: str, size: int, attempt: int = 1) -> Launch:
    """An attempt with a rank on each of `size` hosts: a shell script."""
    program = folder / "train.sh"
    program.write_text(script)
    launch = launch_in(folder, ("sh", str(program)), size)
    return replace(launch, attempt=attempt, directory=folder / f"attempt{attempt}")
