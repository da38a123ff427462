"""What the local engine needs of the host that it runs on.

The engine reaches processes, pipes, files and time through these protocols only, so the simulation
can run the real engine on a host of its own. `this_host.ThisHost` is the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from supervisor.adapters.kernel.exit_info import ExitInfo
from supervisor.adapters.kernel.process_facts import SigtermReaction
from supervisor.adapters.platforms.accelerators import Holder
from supervisor.adapters.processes.output import OutputPatterns
from supervisor.adapters.processes.progress import ProgressPipe
from supervisor.adapters.stores.requests import Request
from supervisor.checkpoints.step_check import DamagedStep
from supervisor.core.events import Event
from supervisor.core.pipes import HeldPipes
from supervisor.engines.checkpoint_search import Wanted
from supervisor.engines.handles import (
    Check,
    Connection,
    Finder,
    FoundPlace,
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
from supervisor.protocol.committed import OwnNames
from supervisor.protocol.epochs import SavedStep
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import Message
from supervisor.protocol.removal import Place
from supervisor.protocol.simulated import Broken


class MainLoop(Protocol):
    """The main loop: calls the engine back, one callback at a time."""

    @property
    def stop_requests(self) -> int:
        """How many requests to stop have come."""
        ...

    def post(self, event: Event) -> None:
        """Hand an event to the runtime. Safe in any thread."""
        ...

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `descriptor` can be read, until `forget`."""
        ...

    def forget(self, descriptor: int) -> None:
        """Stop watching `descriptor`; does nothing if it is not watched."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        """Call `callback` once, `delay` seconds from now."""
        ...


class EventLoop(MainLoop, Protocol):
    """The main loop with the method that runs it."""

    def wait(self, until: float | None) -> Sequence[Event]:
        """Returns the events that have come; blocks until there is one, or until the time
        `until`."""
        ...


class Processes(Protocol):
    """Starts and kills the processes of the job, and answers questions about processes."""

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
        """Send SIGKILL to all processes of the job, except `spared` and their sessions.

        Returns whether any process was left.

        Raises:
            UnkillableError: a process does not die.
        """
        ...

    @property
    def pause(self) -> float:
        """Seconds to wait before `kill` is called again."""
        ...

    def give_up_early(self) -> None:
        """Have `kill` give up on unkillable processes as soon as they were named: a stop was
        requested."""
        ...

    def give_up_early_on_idle(self) -> None:
        """Have `kill` give up early, because a stop was requested before the kill began."""
        ...

    def refresh(self) -> None:
        """Bring what is known up to date. Called periodically, in the main thread."""
        ...

    def orphans(self) -> list[tuple[int, tree.Stat]] | None:
        """Returns the job's live processes whose parent has ended; None: not known at the
        moment."""
        ...

    def orphan_exit(self, pid: int) -> int | None:
        """Returns the exit code of a process that `orphans` named, or minus the signal that ended
        it; None: it has not ended, or nobody knows."""
        ...

    def exit_info(self, pid: int, seen: tree.Stat) -> ExitInfo | None:
        """Returns what will tell how the process ends that was `seen`, where the kernel tells it of
        a process that others reap; None: it is gone, or there is no room for it."""
        ...

    def is_shell(self, pid: int) -> bool:
        """Whether the process runs a shell; False if it has ended."""
        ...

    def losses(self) -> Callable[[], int]:
        """Returns a function that counts the guards lost from now on."""
        ...

    def lives(self, pid: int) -> bool:
        """Whether the process exists and is no zombie."""
        ...

    def send(self, pid: int, seen: tree.Stat, number: int) -> bool:
        """Signal the process `pid` if it is still the one that was `seen`; False: it is gone."""
        ...

    def state(self, pid: int) -> str:
        """Describes for people whether a process runs, sleeps, waits for a disk, or is stopped."""
        ...

    def handles(self, pid: int, number: int) -> bool:
        """Whether a process has a handler for the signal `number`."""
        ...

    def handles_only_sigint(self, pid: int) -> bool:
        """Whether a process is a Python program that handles SIGINT, and not SIGTERM."""
        ...

    def sigterm_reaction(self, pid: int) -> SigtermReaction:
        """Returns what SIGTERM would do to a process now."""
        ...

    def command_line(self, pid: int, redact: Callable[[str], str]) -> str:
        """Returns the command line of a process, redacted."""
        ...

    def foreground_children(self, pid: int) -> list[tuple[int, tree.Stat]]:
        """Returns the children that a shell which outlives SIGTERM cannot have passed it on to."""
        ...

    def programs_below(self, pid: int) -> list[tuple[int, tree.Stat]]:
        """Returns the processes that run the program, if `pid` is only a wrapper around them."""
        ...

    def run_by_shell(self, pid: int) -> list[tuple[int, tree.Stat]]:
        """Returns the outermost processes below the shell `pid` that are no shells, also those that
        nobody has reaped yet."""
        ...

    def unasked_below(self, pid: int) -> list[tuple[int, tree.Stat]]:
        """Returns the programs that may save, and to which only the wrapper `pid` may have passed
        SIGTERM on."""
        ...

    def python_programs(self, pid: int) -> list[tuple[int, tree.Stat]]:
        """Returns the processes whose Python stacks show what `pid` does: itself, or the programs
        below it if it is only a wrapper; none: it runs no Python."""
        ...

    def pipes(self, pid: int) -> HeldPipes:
        """Returns the pipes that a process reads and writes."""
        ...

    def cpu_seconds(self, pid: int) -> float:
        """Returns the CPU seconds of a process and its descendants."""
        ...

    def ran_and_waited(self, pid: int) -> tuple[int, int]:
        """Returns the nanoseconds for which a process has run, and has waited for a CPU."""
        ...

    def resident(self, pid: int) -> int:
        """Returns the bytes of memory that a process and its descendants hold."""
        ...

    def lower_priority(self, pid: int) -> None:
        """Give a process the idle I/O priority."""
        ...

    def dump_native_stacks(self, pid: int, path: Path) -> int | None:
        """Start to write the native stacks of a process to `path`. Returns a pidfd of the tool for
        the caller to close; None: it is not installed.

        Raises:
            OSError: they cannot be taken.
        """
        ...


class Channels(Protocol):
    """Creates pipes, sockets and memory between us and a process."""

    def output(
        self,
        path: Path,
        patterns: OutputPatterns,
        mirror: Callable[[bytes], None] | None,
        on_error: Tell,
    ) -> Output:
        """Returns a pipe for a worker's output, which goes to the file `path` and to `mirror`, if
        given."""
        ...

    def progress(
        self, on_message: Callable[[Message], None], on_refused: Callable[[str], None]
    ) -> ProgressPipe:
        """Returns a pipe for a worker's reports."""
        ...

    def connection(self) -> Connection:
        """Returns a pair of connected sockets."""
        ...

    def snapshot_memory(self) -> Memory:
        """Returns memory for snapshots.

        Raises:
            OSError: it cannot be had.
        """
        ...

    def output_file(self) -> Notes:
        """Returns a file in memory for the output of a process."""
        ...


class HostFiles(Protocol):
    """Files of attempts, and checkpoints. No method blocks for long on a file system that hangs."""

    def read(self, path: Path, limit: int, below: Path) -> bytes:
        """Read a file of at most `limit` bytes.

        Raises:
            OSError: it is not there, or cannot be read in time.
        """
        ...

    def exists(self, path: Path, below: Path) -> bool:
        """Whether the file exists; False also if that cannot be found out."""
        ...

    def success_file_exists(self, place: str) -> bool:
        """Whether the file or object that proves success exists.

        Raises:
            OSError: that cannot be found out.
        """
        ...

    def evidence(self, path: Path, below: Path) -> str:
        """Returns the part of a worker's output that may tell why it ended, from the file that an
        earlier supervisor wrote.

        Raises:
            OSError: the file system does not answer in time.
        """
        ...

    def free_bytes(self, directory: Path) -> int | None:
        """Returns the free bytes of the directory's disk; None: not known."""
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

    def read_requests(
        self,
        model_dir: Path,
        on_request: Callable[[Request], None],
        refused: Tell,
    ) -> None:
        """Take the request files of people, and remove them.

        `on_request` gets each request, `refused` the reason why a file is invalid.

        Raises:
            OSError: they cannot be taken, or the file system does not answer in time.
        """
        ...

    def newest_checkpoint(
        self, place: Path | Uri, own: OwnNames | None = None, *, closed: bool = False
    ) -> int | None:
        """Returns the newest committed step; None: there is none. Called while no worker lives.

        With `own`, only its layout counts. `closed`: a step that nothing commits counts if it is
        complete, because no worker was killed while it wrote: there was none, or all exited with
        code 0.

        Raises:
            OSError: the place cannot be read, or does not answer in time.
        """
        ...

    def unproven_step(
        self, place: Path | Uri, own: OwnNames | None, committed: int | None
    ) -> int | None:
        """Returns the newest step of the last attempt above the newest `committed` one that is
        complete, but was not seen closed; None: there is none. Called while no worker lives.

        Raises:
            OSError: the place cannot be read, or does not answer in time.
        """
        ...

    def torn_step(
        self, place: Path | Uri, own: OwnNames | None, committed: int | None, *, new: bool
    ) -> Path | None:
        """Returns the newest step, if it is above the newest `committed` one and is not complete;
        else None. With `new`, only if the last attempt wrote it. Called while no worker lives.

        Raises:
            OSError: the place cannot be read, or does not answer in time.
        """
        ...

    def seconds_since_commit(
        self, place: Path | Uri, own: OwnNames | None, step: int
    ) -> float | None:
        """Returns how many seconds ago `step` was committed, by its metadata or its files; None:
        it is not there, or in a bucket.

        Raises:
            OSError: the place cannot be read, or does not answer in time.
        """
        ...

    def watch_checkpoints(
        self,
        place: Path | Uri,
        workers: Callable[[], Iterable[int]],
        on_commit: Callable[[SavedStep], None],
        on_lower: Callable[[SavedStep], None],
        on_error: Tell,
        own: OwnNames | None = None,
    ) -> Watch:
        """Watch a place for newly committed checkpoints; with `own`, only its layout counts.

        `workers` returns the pids of the workers that have not exited with code 0, in any thread.
        `on_lower` gets the steps that the attempt commits below the newest one.
        """
        ...

    def find_checkpoints(
        self,
        wanted: Wanted,
        on_found: Callable[[FoundPlace], None],
        on_others: Callable[[Path, Mapping[Path, int]], None],
        on_commit: Callable[[SavedStep], None],
        on_lower: Callable[[SavedStep], None],
        on_error: Tell,
    ) -> Finder:
        """Watch the known directory, and look for another one in which the attempt commits.

        For `on_found` and `on_others` see `CheckpointFinder`; any thread calls them. From then on
        the directory that was found is watched, with the other functions as in `watch_checkpoints`.
        """
        ...

    def check_checkpoints(self, directory: Path, model_dir: Path) -> Check:
        """Begin to compare the newest checkpoint in `directory` with its manifest. Called while no
        worker lives.

        Raises:
            OSError: that cannot be done.
        """
        ...

    def set_aside_damaged(self, damaged: DamagedStep, model_dir: Path) -> Path:
        """Move a damaged checkpoint to where no program looks for it. Returns its new path.

        Raises:
            FileNotFoundError: it is gone already.
            OSError: it cannot be moved, or the file system does not answer in time.
        """
        ...


class Resources(Protocol):
    """Ports, memory and accelerators of the host."""

    def free_ports(self, count: int) -> tuple[int, ...]:
        """Returns `count` different ports that are free now.

        Raises:
            OSError: there are not enough.
        """
        ...

    def available_memory(self) -> int:
        """Returns the bytes of memory that are available."""
        ...

    def oom_kills(self) -> OomKills:
        """Returns a counter of OOM kills in our cgroup from now on."""
        ...

    def chip_holders(self) -> Iterable[Holder]:
        """Returns the processes that have a TPU chip open."""
        ...

    def has_chips(self) -> bool:
        """Whether the host has any TPU chip."""
        ...

    def broken_devices(self) -> Broken:
        """Returns the simulated devices that are broken."""
        ...

    def describe_device_holders(self, redact: Callable[[str], str]) -> Iterable[Notice]:
        """Returns a notice for each thing that may keep an accelerator busy."""
        ...


class Host(Processes, Channels, HostFiles, Resources, Protocol):
    """The host."""


class Compilations(Protocol):
    """The compilation cache of a job: see `CompileCache`."""

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Returns the variables that a process with the environment `given` needs to use the
        cache."""
        ...

    def take_over(self) -> None:
        """Start to take over what a live worker has compiled; returns at once."""
        ...

    def finish_attempt(self) -> None:
        """Take over what the workers have compiled, after they are gone."""
        ...
