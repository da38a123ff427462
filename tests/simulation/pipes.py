"""Pipes, sockets and memory of the simulated machine, and the processes that hold their ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from supervisor.adapters.processes.output import OutputReader
from supervisor.diagnosis.digest import LogDigest
from supervisor.protocol.standby import StandbyOrders
from tests.simulation.true_host import TrueHost

US = object()
"""The holder of ends that the supervisor has not given to a process yet."""


class End:
    """What a descriptor refers to that processes can inherit."""

    def __init__(self) -> None:
        self.holders: set[object] = {US}

    def inherited(self, by: object) -> None:
        """Note that a process holds this end."""
        self.holders.add(by)

    def released(self, by: object) -> None:
        """Note that a process holds this end no more."""
        self.holders.discard(by)


class ProgressEnds(End):
    """See `progress.Pipe`."""

    identity = "pipe"

    def __init__(self, read_end: int, write_end: int) -> None:
        super().__init__()
        self.read_end, self.write_end = read_end, write_end
        self.written: deque[tuple[float, bytes]] = deque()
        """What nobody has read yet, each with the time when it was written."""

    @property
    def can_be_read(self) -> bool:
        """Whether `read` would not block."""
        return bool(self.written) or not self.holders

    def read(self, most: int) -> bytes:
        """See `progress.Pipe`."""
        if not self.written and self.holders:
            raise BlockingIOError
        chunk = b""
        while self.written and len(chunk) + len(self.written[0][1]) <= most:
            chunk += self.written.popleft()[1]
        return chunk

    def close_read_end(self) -> None:
        """See `progress.Pipe`."""
        self.written.clear()

    def close_write_end(self) -> None:
        """See `progress.Pipe`."""
        self.released(US)


class Kept:
    """See `output.OutputSink`: keeps the output in memory, where the next supervisor finds it."""

    def __init__(self) -> None:
        self._digest = LogDigest()

    def write(self, chunk: bytes) -> None:
        """See `output.OutputSink`."""
        self._digest.feed(chunk)

    def evidence(self) -> str:
        """See `output.OutputSink`."""
        return self._digest.text()

    def close(self) -> None:
        """See `output.OutputSink`."""


class OutputEnds(End):
    """See `handles.Output`. What the pump thread would do happens at some later moment, in
    order."""

    def __init__(self, host: TrueHost, write_end: int, reader: OutputReader) -> None:
        super().__init__()
        self.reader = reader
        self.write_end = write_end
        self._host = host
        self._written: deque[bytes] = deque()
        self._is_over = False

    def write(self, data: bytes) -> None:
        """Write as a process that holds this end."""
        self._written.append(data)
        self._turn_soon()

    def released(self, by: object) -> None:
        """See `End`."""
        super().released(by)
        if not self.holders:
            self._turn_soon()

    def start(self) -> None:
        """See `handles.Output`."""
        self.released(US)

    def abandon(self) -> None:
        """See `handles.Output`."""
        self._is_over = True

    def finish(self, timeout: float) -> bool:
        """See `handles.Output`. The main loop waits, and time passes meanwhile."""
        end = self._host.clock.time + timeout
        while not self._is_over and self._host.pass_time(end):
            pass
        return self._is_over

    def _turn_soon(self) -> None:
        slow = self._host.happens(self._host.faults.slow)
        self._host.later(self._host.between(0.0, 3.0 if slow else 0.3), self._turn)

    def _turn(self) -> None:
        """Do what the pump thread would do."""
        while self._written and not self._is_over:
            self.reader.take(self._written.popleft())
        if not self.holders and not self._is_over:
            self._is_over = True
            self.reader.end()


class Peer(Protocol):
    """A process that messages can be sent to."""

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether it was stopped by a signal."""
        ...


class ConnectionEnds(End):
    """See `handles.Connection`."""

    def __init__(self, descriptor: int, theirs: int) -> None:
        super().__init__()
        self.descriptor, self.theirs = descriptor, theirs
        self.said: deque[bytes] = deque()
        self.is_closed = False
        """Whether our own end is closed."""
        self.hears: Callable[[bytes], None] = lambda data: None
        self.obeys: Callable[[StandbyOrders, Sequence[int]], None] = lambda orders, descriptors: (
            None
        )
        """What the process at the other end does with data, and with orders."""

    @property
    def can_be_read(self) -> bool:
        """Whether `receive` would not block."""
        return bool(self.said) or not self.holders

    def close_theirs(self) -> None:
        """See `handles.Connection`."""
        self.released(US)

    def receive(self, most: int) -> bytes:
        """See `handles.Connection`."""
        if self.said:
            return self.said.popleft()
        if self.holders:
            raise BlockingIOError
        return b""

    def send(self, data: bytes) -> None:
        """See `handles.Connection`."""
        if not self.holders:
            raise BrokenPipeError(32, "Broken pipe")
        self.hears(data)

    def send_orders(self, orders: StandbyOrders, descriptors: Sequence[int]) -> None:
        """See `handles.Connection`."""
        if not self.holders:
            raise BrokenPipeError(32, "Broken pipe")
        self.is_closed = True
        self.obeys(orders, descriptors)

    def close(self) -> None:
        """See `handles.Connection`."""
        self.is_closed = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that an attempt left in memory."""

    phase: int
    attempt: int
    step: int


class SnapshotEnds(End):
    """See `handles.Memory`."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.phases: set[int] = set()
        """The phases of the attempts that had this memory."""
        self.content: Snapshot | None = None
        self.size = 1000

    def to_environment(self) -> dict[str, str]:
        """See `handles.Memory`."""
        return {}

    @property
    def is_empty(self) -> bool:
        """See `handles.Memory`."""
        return self.content is None

    def empty(self) -> None:
        """See `handles.Memory`."""
        self.content = None

    def close(self) -> None:
        """See `handles.Memory`."""


class NoteEnds(End):
    """See `handles.Notes`."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.text = b""

    def tail(self, most: int) -> bytes:
        """See `handles.Notes`."""
        return self.text[-most:]

    def close(self) -> None:
        """See `handles.Notes`."""
