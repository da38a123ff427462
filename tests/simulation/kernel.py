"""What the kernel of the simulated machine knows about the processes of one supervisor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from supervisor.adapters.kernel.process_facts import SigtermReaction
from supervisor.core.pipes import HeldPipes
from supervisor.host.tree import Stat
from tests.simulation.compiles import Compile
from tests.simulation.processes import Process
from tests.simulation.true_host import TrueHost

_GIBIBYTE = 1 << 30


class SimulatedKernel:
    """Implements the methods of `engines.host_port.Processes` that take a pid."""

    host: TrueHost

    def __init__(self) -> None:
        self._processes: list[Process] = []

    def living(self) -> list[Process]:
        """See `guard.GuardedMachine`."""
        return [process for process in self._processes if process.lives]

    def _process(self, pid: int) -> Process | None:
        return next((each for each in self._processes if each.pid == pid), None)

    def lives(self, pid: int) -> bool:
        """See `Processes`."""
        process = self._process(pid)
        return process is not None and process.lives

    def send(self, pid: int, seen: Stat, number: int) -> bool:
        """See `Processes`."""
        process = self._process(pid)
        if process is None or not process.lives:
            return False
        assert process.group is not None
        self.host.end_leftover(process.group)
        return True

    def state(self, pid: int) -> str:
        """See `Processes`."""
        process = self._process(pid)
        if process is None or not process.lives:
            return "gone"
        return "stopped" if process.stopped else "sleeping"

    def handles(self, pid: int, number: int) -> bool:
        """See `Processes`."""
        return self.lives(pid)

    def handles_only_sigint(self, pid: int) -> bool:
        """See `Processes`."""
        return False

    def sigterm_reaction(self, pid: int) -> SigtermReaction:
        """See `Processes`."""
        return SigtermReaction.HANDLED if self.lives(pid) else SigtermReaction.UNKNOWN

    def command_line(self, pid: int, redact: Callable[[str], str]) -> str:
        """See `Processes`."""
        return "left behind"

    def foreground_children(self, pid: int) -> list[tuple[int, Stat]]:
        """See `Processes`."""
        return []

    def programs_below(self, pid: int) -> list[tuple[int, Stat]]:
        """See `Processes`."""
        return []

    def run_by_shell(self, pid: int) -> list[tuple[int, Stat]]:
        """See `Processes`."""
        return []

    def unasked_below(self, pid: int) -> list[tuple[int, Stat]]:
        """See `Processes`."""
        return []

    def python_programs(self, pid: int) -> list[tuple[int, Stat]]:
        """See `Processes`."""
        return [(pid, Stat("S", 1, pid, pid))]

    def pipes(self, pid: int) -> HeldPipes:
        """See `Processes`."""
        return HeldPipes(frozenset(), frozenset())

    def cpu_seconds(self, pid: int) -> float:
        """See `Processes`."""
        process = self._process(pid)
        if process is not None and process.group is not None and process.group.stuck:
            return 0.0
        return self.host.clock.now() / 10

    def ran_and_waited(self, pid: int) -> tuple[int, int]:
        """See `Processes`."""
        process = self._process(pid)
        return process.ran_and_waited if isinstance(process, Compile) else (0, 0)

    def resident(self, pid: int) -> int:
        """See `Processes`."""
        process = self._process(pid)
        return process.size if isinstance(process, Compile) else _GIBIBYTE

    def lower_priority(self, pid: int) -> None:
        """See `Processes`."""

    def dump_native_stacks(self, pid: int, path: Path) -> None:
        """See `Processes`."""
