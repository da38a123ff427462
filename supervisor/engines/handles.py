"""Protocols of what the local engine holds of a host: processes, pipes, sockets, memory, files.

`host_port.Host` creates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Protocol

from supervisor.adapters.processes.output import OutputReader
from supervisor.checkpoints.step_check import CheckedSteps
from supervisor.diagnosis.failure import WorkerExit
from supervisor.protocol.epochs import SavedStep
from supervisor.protocol.standby import StandbyOrders


class Process(Protocol):
    """A process of the job, in a session of its own."""

    pid: int
    pidfd: int
    """Becomes readable when the process has ended."""

    def poll(self, rank: int) -> WorkerExit | None:
        """Returns how it ended; None while it runs."""
        ...

    def signal(self, number: Signals) -> None:
        """Signal this process alone."""
        ...

    def signal_group(self, number: Signals) -> None:
        """Signal the whole process group of this process, while it lives."""
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
        """Close both ends, because no worker was started."""
        ...

    def finish(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until all output is read; False: a process still holds the
        pipe."""
        ...


class Connection(Protocol):
    """Our end of a socket that a process has inherited the other end of."""

    descriptor: int
    """Becomes readable when `receive` has something to return."""
    theirs: int
    """The other end, until `close_theirs`."""

    def close_theirs(self) -> None:
        """Close our copy of the other end: the process has inherited it, or was not started."""
        ...

    def receive(self, most: int) -> bytes:
        """Returns at most `most` received bytes; b"" once the other end is closed.

        Raises:
            BlockingIOError: nothing has arrived.
            ConnectionResetError: the process ended without reading all that was sent.
        """
        ...

    def send(self, data: bytes) -> None:
        """Send `data`.

        Raises:
            OSError: the process has ended.
        """
        ...

    def send_orders(self, orders: StandbyOrders, descriptors: Sequence[int]) -> None:
        """Make the standby at the other end a worker, with `descriptors` passed to it.

        Raises:
            OSError: the standby has ended, or does not read.
        """
        ...

    def close(self) -> None:
        """Close our end."""
        ...


class Memory(Protocol):
    """Memory for the snapshots of one rank: see `SnapshotMemory`."""

    descriptor: int

    def to_environment(self) -> dict[str, str]:
        """What the worker needs in its environment to find it."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing: nothing was written, or it was emptied."""
        ...

    @property
    def size(self) -> int:
        """Bytes of this host's memory that it takes."""
        ...

    def empty(self) -> None:
        """Free the content."""
        ...

    def close(self) -> None:
        """Free the memory itself."""
        ...


class Notes(Protocol):
    """The output of a process that is not a worker, kept in memory."""

    descriptor: int

    def tail(self, most: int) -> bytes:
        """Returns the last bytes of the output, at most `most`."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class Watch(Protocol):
    """Watches for new checkpoints until it is stopped."""

    @property
    def has_new_checkpoint(self) -> bool:
        """Whether the newest step has changed since the first look that worked."""
        ...

    def poll_now(self) -> None:
        """Look now, because a worker reported a save."""
        ...

    def stop(self) -> None:
        """Stop watching."""
        ...

    def last_lower(self, *, closed: bool) -> tuple[SavedStep, ...]:
        """Returns the newest step and a new one below it that was not told yet: the attempt is
        over. Without such a step: the newest one alone if its name has an epoch, else nothing.
        `closed`: see `HostFiles.newest_checkpoint`.

        Raises:
            OSError: the place cannot be read, or does not answer in time.
        """
        ...


@dataclass(frozen=True, slots=True)
class BegunAgain:
    """An attempt commits in a folder of its own (`core.start_folders`), and began below what is
    committed in that of the last one."""

    step: int
    """The lowest step that was seen in the attempt's folder."""
    last: Path
    """The directory of the last attempt."""
    newest: int
    """The newest step there."""


@dataclass(frozen=True, slots=True)
class FoundPlace:
    """A directory in which the attempt commits its checkpoints."""

    directory: Path
    kinds: tuple[str, ...]
    """The kinds of names that count there: see `core.events.CheckpointsFound`."""
    steps: tuple[SavedStep, ...] = ()
    """The newest step there, behind one that was there before and is higher, if there is one; none
    if the directory was known, and other names count there."""
    is_resumed: bool = False
    """Whether the newest step is above one from before the attempt: it goes on there."""
    again: BegunAgain | None = None
    """What shows that the program makes a folder at each start, and restores nothing."""


class Finder(Watch, Protocol):
    """Watches for new checkpoints, and finds their directory: see `CheckpointFinder`."""

    @property
    def found(self) -> Path | None:
        """The directory that was found; None: none was so far."""
        ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of names that count there: see `core.events.CheckpointsFound`."""
        ...

    def note_written(self, path: str) -> None:
        """Note that the attempt writes `path`, which may be a checkpoint."""
        ...

    def last_look(self, *, closed: bool) -> Path | None:
        """Look a last time, if nothing was found yet: the attempt is over. Returns the directory
        that was found; None: none was. `closed`: see `HostFiles.newest_checkpoint`.

        Raises:
            OSError: a file system does not answer in time.
        """
        ...


class Check(Protocol):
    """A check of the newest checkpoint that is under way."""

    descriptor: int
    """Becomes readable when the check is over."""

    def result(self) -> CheckedSteps:
        """Returns what was found; the check is over.

        Raises:
            Exception: it could not be made: an OSError, or whatever has ended it.
        """
        ...

    def close(self) -> None:
        """End the check, if it is still under way, and free the descriptor."""
        ...


class OomKills(Protocol):
    """Counts the processes that the kernel killed for lack of memory."""

    def rise(self) -> int | None:
        """Returns how many since this object was made; None: the host does not count them."""
        ...


class OpenFile(Protocol):
    """A file that a process may write to."""

    def fileno(self) -> int:
        """Its descriptor."""
        ...
