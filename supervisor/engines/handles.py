"""What the local engine holds of a host: a process, the ends of what leads to it, a memory.

See `machine`, which hands these out.
"""

from __future__ import annotations

from collections.abc import Sequence
from signal import Signals
from typing import Protocol

from supervisor.adapters.processes.output import OutputReader
from supervisor.diagnosis.failure import WorkerExit
from supervisor.protocol.standby import StandbyOrders


class Process(Protocol):
    """A process of the job, in a session of its own."""

    pid: int
    pidfd: int
    """Can be read when it has ended."""

    def poll(self, rank: int) -> WorkerExit | None:
        """Returns how it ended; None while it runs."""
        ...

    def signal(self, number: Signals) -> None:
        """Signal this process alone."""
        ...

    def signal_group(self, number: Signals) -> None:
        """Signal it with all of its process group, while it lives."""
        ...

    def close(self) -> None:
        """Free the descriptor; the process has ended."""
        ...


class Output(Protocol):
    """A worker's output on its way to a reader."""

    reader: OutputReader
    write_end: int

    def start(self) -> None:
        """Close our copy of the write end and begin to read."""
        ...

    def abandon(self) -> None:
        """Close both ends: there is no worker."""
        ...

    def finish(self, timeout: float) -> bool:
        """Wait until all output is read; False if somebody still holds the pipe."""
        ...


class Connection(Protocol):
    """Our end of a socket that a process has inherited the other end of."""

    descriptor: int
    """Can be read when `receive` has something to return."""
    theirs: int
    """The other end, until `close_theirs`."""

    def close_theirs(self) -> None:
        """The process has it now, or there is none."""
        ...

    def receive(self, most: int) -> bytes:
        """Returns what was said, at most so many bytes; nothing once the other end is closed.

        Raises:
            BlockingIOError: nothing was said.
            ConnectionResetError: the process is gone, and has not heard all.
        """
        ...

    def send(self, data: bytes) -> None:
        """Say something.

        Raises:
            OSError: the process is gone.
        """
        ...

    def send_orders(self, orders: StandbyOrders, descriptors: Sequence[int]) -> None:
        """Make the standby at the other end a worker.

        Raises:
            OSError: it is gone, or does not listen.
        """
        ...

    def close(self) -> None:
        """Let go of our end."""
        ...


class Memory(Protocol):
    """Memory for the snapshots of one rank: see `SnapshotMemory`."""

    descriptor: int

    def to_environment(self) -> dict[str, str]:
        """What the worker needs in its environment to find it."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written, or all of it was given up."""
        ...

    @property
    def size(self) -> int:
        """Bytes of this host's memory that it takes."""
        ...

    def empty(self) -> None:
        """Give up what is in it."""
        ...

    def close(self) -> None:
        """Give it up for good."""
        ...


class Notes(Protocol):
    """The output of a process that is no worker, while it is ours alone."""

    descriptor: int

    def tail(self, most: int) -> bytes:
        """The last bytes that were written, at most so many."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Watch(Protocol):
    """Looks for new checkpoints until it is stopped."""

    @property
    def has_news(self) -> bool:
        """Whether another step was the newest than at its first look."""
        ...

    def look_now(self) -> None:
        """The worker says that it has saved."""
        ...

    def stop(self) -> None:
        """Nobody wants to know any more."""
        ...


class OomKills(Protocol):
    """Counts the processes that the kernel killed for memory."""

    def rise(self) -> int | None:
        """How many since it was made; None where nobody counts."""
        ...


class OpenFile(Protocol):
    """A file that a process may write to."""

    def fileno(self) -> int:
        """Its descriptor."""
        ...
