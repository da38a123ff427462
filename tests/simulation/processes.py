"""The processes that one supervisor starts on the simulated machine, and what they do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import Any, Protocol

from supervisor.diagnosis.failure import WorkerExit
from supervisor.protocol.environment import STANDBY
from supervisor.protocol.standby import READY, UNUSABLE, StandbyOrders
from tests.simulation.group import Group
from tests.simulation.pipes import ConnectionEnds, End, NoteEnds
from tests.simulation.true_host import TrueHost


class Owner(Protocol):
    """The machine, as one of its processes uses it."""

    host: TrueHost

    def ends_of(self, descriptors: Sequence[int]) -> list[End]:
        """Return the ends that these descriptors refer to."""
        ...

    def signalled(self, process: Process, number: Signals) -> None:
        """Take note that a worker got a signal."""
        ...

    def becomes_worker(self, process: Process, env: Mapping[str, str]) -> None:
        """Make a process a worker."""
        ...


class Process:
    """See `handles.Process`. When it ends, the ends of pipes that it holds are closed."""

    def __init__(
        self, owner: Owner, pid: int, pidfd: int, env: Mapping[str, str], given: Sequence[int]
    ) -> None:
        """`given` are the descriptors that it inherits."""
        self.pid, self.pidfd = pid, pidfd
        self.env = env
        self.exit: WorkerExit | None = None
        self.stopped = False
        self.is_dying = False
        self.group: Group | None = None
        """Set for a worker once all workers of its group are started."""
        self.rank = 0
        self.owner = owner
        self.held: list[End] = []
        self.inherit(given)

    def inherit(self, descriptors: Sequence[int]) -> None:
        """Hold these ends, too."""
        for end in self.owner.ends_of(descriptors):
            end.inherited(self)
            self.held.append(end)

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.exit is None

    def end(self, ended: WorkerExit) -> None:
        """End the process now."""
        if self.lives:
            self.exit = ended
            for each in self.held:
                each.released(self)

    # --- see `handles.Process` --------------------------------------------------------------------

    def poll(self, rank: int) -> WorkerExit | None:
        """Return how it ended; None: it still runs."""
        return None if self.exit is None else replace(self.exit, rank=rank)

    def signal(self, number: Signals) -> None:
        """Send a signal to this process alone."""
        if not self.lives:
            return
        if number in (SIGSTOP, SIGCONT):
            self.stopped = number == SIGSTOP
        elif self.group is not None:
            self.owner.signalled(self, number)
        elif number in (SIGKILL, SIGTERM) and not self.is_dying:
            self.is_dying = number == SIGKILL
            host = self.owner.host
            slow = number == SIGKILL and host.happens(host.faults.slow)
            delay = host.between(0.0, 30.0 if slow else 0.05)
            ended = WorkerExit(0, signal=number.name)
            host.later(delay, lambda: self.end(ended))

    def signal_group(self, number: Signals) -> None:
        """Send a signal to its whole process group."""
        self.signal(number)

    def close(self) -> None:
        """Close the descriptor."""


class Standby(Process):
    """Becomes ready, unless it is stopped or fails, and becomes a worker when it gets its
    orders."""

    def begin(self) -> None:
        """Begin to import what it needs."""
        host = self.owner.host
        self._connection = next(end for end in self.held if isinstance(end, ConnectionEnds))
        self._connection.obeys = self._obey
        host.later(host.between(0.5, 30.0), self._get_ready)

    def _get_ready(self) -> None:
        host = self.owner.host
        if not self.lives or self._connection.is_closed:
            self.end(WorkerExit(0, code=0))
        elif self.stopped:
            host.later(1.0, self._get_ready)
        elif host.happens(host.faults.early_exit):
            self._connection.said.append(UNUSABLE + b"an import failed")
        elif host.happens(host.faults.worker_fails):
            self.end(WorkerExit(0, code=1))
        else:
            self._connection.said.append(READY)
            if host.happens(host.faults.struck):
                host.later(host.between(0.0, 100.0), self._be_struck)

    @property
    def is_waiting(self) -> bool:
        """Whether it may still become a worker."""
        return self.lives and not self.is_dying and not self._connection.is_closed

    def _be_struck(self) -> None:
        if self.group is None and STANDBY in self.env:
            self.end(WorkerExit(0, signal="SIGKILL"))

    def _obey(self, orders: StandbyOrders, descriptors: Sequence[int]) -> None:
        if self.stopped:
            raise TimeoutError(110, "it does not listen")
        self.env = orders.env
        self.inherit(descriptors)
        self.owner.becomes_worker(self, orders.env)


class Probe(Process):
    """Answers a question about the devices, as `trainer.probe` does, or hangs, or dies."""

    def begin(self) -> None:
        """Begin to wait for the question."""
        self._connection = next(end for end in self.held if isinstance(end, ConnectionEnds))
        self._notes = next(end for end in self.held if isinstance(end, NoteEnds))
        self._connection.hears = self._hear

    def _hear(self, line: bytes) -> None:
        host, asked = self.owner.host, json.loads(line)
        host.later(host.between(0.0, 15.0), lambda: self._answer(asked))

    def _answer(self, asked: Mapping[str, Any]) -> None:
        host = self.owner.host
        if not self.lives:
            return
        if host.happens(host.faults.probe_fails):
            if host.happens(0.5):  # else it hangs
                self._notes.text = b"it broke\n"
                self.end(WorkerExit(0, code=1))
            return
        count = int(asked["environment"].get("JAX_NUM_CPU_DEVICES", 0))
        bad = {str(place): "it computes wrongly" for place in asked["wrong"]}
        found = {"found": count, "bad": bad, "at": None, "compiled": True}
        self._connection.said.append(json.dumps(found).encode() + b"\n")
        host.later(0.1, lambda: self.end(WorkerExit(0, code=0)))
