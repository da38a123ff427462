"""The bench of the fleet engine: real agents, as many as there are workers, on one machine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from supervisor.core.events import WorkersStarted
from supervisor.protocol import simulated
from supervisor.protocol.committed import MARKER
from tests.engines.benches import Bench, launch_in, program_in
from tests.fleet.cluster import Cluster
from tests.fleet.leading import Leader


class OnManyHosts(Bench):
    """Each worker on a host of its own; see `OnThisHost` for what it takes."""

    def __init__(
        self, folder: Path, workers: int = 1, *, ends: bool = False, starts: bool = True
    ) -> None:
        """See `OnThisHost`."""
        super().__init__()
        argv = program_in(folder, ends=ends, starts=starts)
        (folder / simulated.FILE).write_text(json.dumps({}))
        self._folder = folder
        self._cluster = Cluster(workers)
        self._leader = Leader(self._cluster, folder, size=workers)
        self.told = self._leader.told
        self.engine = self._leader.engine
        self.launch = launch_in(folder, argv, workers)
        self.launch.directory.mkdir()

    def turn(self, seconds: float) -> None:
        """See `Bench`."""
        self._leader.turn(seconds)

    def until(self, happened: Callable[[], bool]) -> None:
        """See `Bench`."""
        self._leader.until(happened)

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

    def close(self) -> None:
        """See `Bench`."""
        self._cluster.close()

    @property
    def _pids(self) -> tuple[int, ...]:
        return tuple(pid for started in self.of(WorkersStarted) for pid in started.pids)
