"""What the local engine needs of the host that it runs on.

Processes, pipes, files and time are reached through these protocols and in no other way, so the
simulation can put a host of its own below the real engine. `this_host.ThisHost` is the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from supervisor.adapters.kernel.process_facts import Reaction
from supervisor.adapters.platforms.accelerators import Holder
from supervisor.adapters.processes.output import OutputPatterns
from supervisor.adapters.processes.progress import ProgressPipe
from supervisor.core.events import Event
from supervisor.core.pipes import HeldPipes
from supervisor.engines.handles import (
    Connection,
    Memory,
    Notes,
    OomKills,
    OpenFile,
    Output,
    Process,
    Watch,
)
from supervisor.host import tree
from supervisor.host.notice import Notice, Tell
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import Message
from supervisor.protocol.removal import Place
from supervisor.protocol.simulated import Broken


class MainLoop(Protocol):
    """What calls the engine back, one callback at a time."""

    @property
    def stops(self) -> int:
        """How many requests to stop have come."""
        ...

    def post(self, event: Event) -> None:
        """Hand an event to the runtime. Safe in any thread."""
        ...

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `descriptor` can be read, until `forget`."""
        ...

    def forget(self, descriptor: int) -> None:
        """Stop watching `descriptor`; nothing where it is not watched."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        """Call `callback` once, `delay` seconds from now."""
        ...


class EventLoop(MainLoop, Protocol):
    """The same, for whoever turns it."""

    def wait(self, until: float | None) -> Sequence[Event]:
        """The events that have come; blocks until there is one, or until the time `until`."""
        ...


class Processes(Protocol):
    """Starts the processes of the job, kills them, and tells what the kernel knows of them."""

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        inherit: Sequence[int] = (),
    ) -> Process:
        """Start `argv` with stdout and stderr on `output`, and the descriptors `inherit` open.

        Raises:
            OSError: it cannot be started.
        """
        ...

    def kill(self, spared: Collection[int] = ()) -> bool:
        """SIGKILL all of the job but the processes `spared`, with what is in their sessions;
        returns whether anything was left.

        Raises:
            UnkillableError: something has been left for too long.
        """
        ...

    @property
    def pause(self) -> float:
        """Seconds to wait before `kill` is called again."""
        ...

    def hurry(self) -> None:
        """Somebody waits: `kill` gives up what is left as soon as it would be named."""
        ...

    def asked(self) -> None:
        """Somebody waits since before `kill`: it gives up early what does not move."""
        ...

    def look(self) -> None:
        """Take note of what has changed: from time to time, in the main thread."""
        ...

    def orphans(self) -> list[tuple[int, tree.Stat]] | None:
        """Returns what lives although its parent has ended; None while nobody knows."""
        ...

    def losses(self) -> Callable[[], int]:
        """Counts the guards that are lost from now on."""
        ...

    def lives(self, pid: int) -> bool:
        """Whether there is such a process, and it is no zombie."""
        ...

    def send(self, pid: int, seen: tree.Stat, number: int) -> bool:
        """Signal the process that was `seen`; False: it is gone."""
        ...

    def state(self, pid: int) -> str:
        """Whether a process runs, sleeps, waits for a disk, or is stopped."""
        ...

    def handles(self, pid: int, number: int) -> bool:
        """Whether a process has a handler for the signal `number`."""
        ...

    def reaction(self, pid: int) -> Reaction:
        """What SIGTERM would do to a process now."""
        ...

    def command(self, pid: int, redact: Callable[[str], str]) -> str:
        """The command line of a process without its secrets."""
        ...

    def waited_for(self, pid: int) -> list[tuple[int, tree.Stat]]:
        """Returns the foreground children of a shell that handles SIGTERM."""
        ...

    def pipes(self, pid: int) -> HeldPipes:
        """The pipes that a process reads and writes."""
        ...

    def cpu_seconds(self, pid: int) -> float:
        """CPU time of a process and all below it."""
        ...

    def ran_and_waited(self, pid: int) -> tuple[int, int]:
        """Nanoseconds for which a process has run, and has waited to run."""
        ...

    def resident(self, pid: int) -> int:
        """Bytes that a process and its descendants hold."""
        ...

    def lower_priority(self, pid: int) -> None:
        """Let a process read and write only while nobody else does."""
        ...

    def dump_native_stacks(self, pid: int, path: Path) -> None:
        """Start to write the native stacks of a process to `path`.

        Raises:
            OSError: they cannot be taken.
        """
        ...


class Channels(Protocol):
    """What leads from a process to us, and back."""

    def output(
        self,
        path: Path,
        patterns: OutputPatterns,
        mirror: Callable[[bytes], None] | None,
        on_error: Tell,
    ) -> Output:
        """A pipe for a worker's output, which goes to `path` and, if given, to `mirror`."""
        ...

    def progress(
        self, on_message: Callable[[Message], None], on_refused: Callable[[str], None]
    ) -> ProgressPipe:
        """A pipe for a worker's progress."""
        ...

    def connection(self) -> Connection:
        """A pair of sockets."""
        ...

    def snapshot_memory(self) -> Memory:
        """Memory for snapshots.

        Raises:
            OSError: there is none to be had.
        """
        ...

    def notes(self) -> Notes:
        """Room for the output of a process."""
        ...


class HostFiles(Protocol):
    """The files of attempts, and the checkpoints. A file system that hangs is not waited for."""

    def read(self, path: Path, limit: int, below: Path) -> bytes:
        """Read a file of at most `limit` bytes.

        Raises:
            OSError: it is not there, or cannot be read in time.
        """
        ...

    def exists(self, path: Path, below: Path) -> bool:
        """Whether there is such a file; False also while nobody can look."""
        ...

    def success_file_exists(self, place: str) -> bool:
        """Whether the file or object is there that tells of success.

        Raises:
            OSError: nobody can look.
        """
        ...

    def evidence(self, path: Path, below: Path) -> str:
        """What is worth judging of the output that an earlier supervisor has kept in `path`.

        Raises:
            OSError: there is no answer in time.
        """
        ...

    def free_bytes(self, directory: Path) -> int | None:
        """Free space; None: nobody knows."""
        ...

    def opened(
        self, path: Path, *, new: bool = False, below: Path | None = None
    ) -> AbstractContextManager[OpenFile]:
        """Open a file to write to.

        Raises:
            OSError: that cannot be done.
        """
        ...

    def make_directory(self, path: Path) -> None:
        """Make a directory, if it is not there.

        Raises:
            OSError: that cannot be done.
        """
        ...

    def remove(self, place: Place, path: Path, below: Path) -> None:
        """Remove a file of ours, if it is there: see `protocol.removal`.

        Raises:
            OSError: it is not ours, or cannot be removed.
        """
        ...

    def hear_requests(
        self,
        model_dir: Path,
        heard: Callable[[tuple[str, ...]], None],
        refused: Tell,
    ) -> None:
        """Take away the requests to end quarantines: `heard` is told the units of each, `refused`
        why a file is none.

        Raises:
            OSError: they cannot be taken, or there is no answer in time.
        """
        ...

    def newest_checkpoint(self, place: Path | Uri) -> int | None:
        """The newest committed step.

        Raises:
            OSError: nobody can look, or there is no answer in time.
        """
        ...

    def watch_checkpoints(
        self,
        place: Path | Uri,
        on_commit: Callable[[int], None],
        on_error: Tell,
    ) -> Watch:
        """Watch a place for newly committed checkpoints."""
        ...


class Resources(Protocol):
    """What the host has to give."""

    def free_ports(self, count: int) -> tuple[int, ...]:
        """So many different ports that are free now.

        Raises:
            OSError: there are not so many.
        """
        ...

    def available_memory(self) -> int:
        """Bytes that the host can still give."""
        ...

    def oom_kills(self) -> OomKills:
        """Counts those of our cgroup from now on."""
        ...

    def chip_holders(self) -> Iterable[Holder]:
        """The processes that have a TPU chip open."""
        ...

    def has_chips(self) -> bool:
        """Whether there is any TPU chip."""
        ...

    def broken_devices(self) -> Broken:
        """The simulated devices that are broken."""
        ...

    def told_in_the_way(self, redact: Callable[[str], str]) -> Iterable[Notice]:
        """All that may keep an accelerator busy, a line each."""
        ...


class Host(Processes, Channels, HostFiles, Resources, Protocol):
    """The host."""


class Compilations(Protocol):
    """The compilation cache of a job: see `CompileCache`."""

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """What a process with the environment `given` needs in addition to use the cache."""
        ...

    def take_over(self) -> None:
        """Take over what a living worker has compiled; returns at once."""
        ...

    def settle(self) -> None:
        """Take over what the worker has compiled, which is gone."""
        ...
