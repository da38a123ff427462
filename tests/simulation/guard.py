"""The guard process of one supervisor: the parent of all processes of the job, which die with
it."""

from __future__ import annotations

from collections.abc import Callable
from errno import EPIPE
from signal import SIGKILL
from typing import Protocol

from supervisor.engines.host_port import MainLoop
from tests.simulation.processes import Process
from tests.simulation.true_host import TrueHost

_PAUSE = 0.05
_LAST_LOOK = 5.0
"""Seconds for which a start waits until what a dead guard has left is gone."""
_MID_START = 0.03
"""Probability that it is killed during a start, in a world where it is killed at all."""


class GuardedMachine(Protocol):
    """The part of the machine that its guard uses."""

    host: TrueHost

    @property
    def is_gone(self) -> bool:
        """Whether the supervisor has ended."""
        ...

    def living(self) -> list[Process]:
        """The processes of the job that have not ended."""
        ...


class SimulatedGuard:
    """See `adapters.processes.guard_client.GuardClient`, and `engines.guard_watch.keep_guard`,
    which replaces it."""

    def __init__(self, machine: GuardedMachine, pidfd: int) -> None:
        self.pidfd = pidfd
        """Readable while the guard is dead."""
        self.is_dead = False
        self._losses = 0
        self._machine = machine
        self._host = machine.host
        self._stream = machine.host.stream("guard in a start")

    def keep(self, loop: MainLoop) -> None:
        """Replace the guard whenever it dies."""

        def ended() -> None:
            loop.forget(self.pidfd)
            mend()

        def mend() -> None:
            if self.is_dead and self.bury():
                loop.call_later(_PAUSE, mend)
            else:
                loop.watch(self.pidfd, ended)

        loop.watch(self.pidfd, ended)

    def die(self) -> None:
        """Kill the guard, as somebody outside would."""
        if self.is_dead or self._machine.is_gone:
            return
        self._host.tell("the guard is killed, and all that it has started")
        self.is_dead = True
        if self._host.groups:
            self._host.groups[max(self._host.groups)].guard_died = True
        for group in self._host.alive():
            group.lost_guard |= bool(group.workers) and not group.dying
            self._host.kill(group)
        self._kill_the_others()

    def bury(self) -> bool:
        """Kill what the dead guard has left. Returns True if something is left; else there is a new
        guard."""
        for group in self._host.alive():
            self._host.kill(group)
        self._kill_the_others()
        if self._host.alive() or self._machine.living():
            return True
        self.is_dead = False
        self._losses += 1
        return False

    def begin_to_start(self, program: str) -> None:
        """Ask the guard to start `program`.

        Raises:
            OSError: the guard is dead, and so is the program.
        """
        end = self._host.clock.time + _LAST_LOOK
        while self.is_dead and self.bury():
            if self._host.clock.time >= end:
                raise OSError(0, "what the guard process left behind cannot be killed", program)
            self._host.pass_time(end)
        if self._host.hazards.guard_dies and self._stream.happens(_MID_START):
            self.die()
            raise OSError(EPIPE, "the guard process, which starts it, has ended", program)

    def losses(self) -> Callable[[], int]:
        """Return a function that counts the guards that have died since this call."""
        before = self._losses + self.is_dead
        return lambda: self._losses + self.is_dead - before

    def _kill_the_others(self) -> None:
        for process in self._machine.living():
            if process.group is None:
                process.signal(SIGKILL)
