"""Runs the processes of a replay: as many as the attempt had workers, with the same devices each.

None outlives this one. As soon as one fails, the others are killed: they would wait for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryFile
from typing import IO

from supervisor.adapters.kernel.capacity import free_ports
from supervisor.engines.launch import Launch
from supervisor.engines.worker_environment import placement_variables, ports_needed
from supervisor.host.birth import die_with_parent
from supervisor.protocol import environment

_INTERVAL = 0.05
"""Seconds between two looks whether a process has ended."""


@dataclass(frozen=True, slots=True)
class ReplayProcesses:
    """The processes of `trainer.replay` with `arguments`, which compute what `launch` did."""

    launch: Launch
    arguments: tuple[str, ...]

    def in_debugger(self) -> int:
        """Run the only process with this one's terminal; returns its exit code."""
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the debugger alone
        with self._started(0, (), None, "--pdb") as process:
            return process.wait()

    def told(self) -> tuple[int, bytes]:
        """Run all processes; returns the exit code of the first that failed, and what rank 0 has
        printed."""
        ports = free_ports(ports_needed(self.launch))
        with TemporaryFile() as printed, ExitStack() as stack:
            running = []
            for rank in self.launch.ranks:
                output = printed if rank == 0 else subprocess.DEVNULL
                running.append(stack.enter_context(self._started(rank, ports, output)))
                stack.callback(running[-1].kill)
            while (code := _code_of(running)) is None:
                time.sleep(_INTERVAL)
            printed.seek(0)
            return code, printed.read()

    def _started(
        self, rank: int, ports: tuple[int, ...], output: IO[bytes] | int | None, *options: str
    ) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-P", "-m", "trainer.replay", *self.arguments, *options]
        dies_with_us: Callable[[], None] = partial(die_with_parent, os.getpid())
        env = self._environment(rank, ports)
        return subprocess.Popen(argv, env=env, stdout=output, preexec_fn=dies_with_us)

    def _environment(self, rank: int, ports: tuple[int, ...]) -> dict[str, str]:
        """Returns the environment of a worker, without what connects it with a supervisor."""
        launch = self.launch
        inherited = environment.without_supervisor_variables(os.environ)
        env = launch.inherited(inherited, launch.values(None))
        env |= placement_variables(launch, rank, ports, env)
        env.pop(environment.SIMULATED_DEVICES, None)
        return {**env, **launch.adjustments.to_environment()}


def _code_of(running: list[subprocess.Popen[bytes]]) -> int | None:
    """Returns the exit code of the processes together; None: they run on."""
    codes = [process.poll() for process in running]
    failed = [code for code in codes if code]
    return failed[0] if failed else None if None in codes else 0
