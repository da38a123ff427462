"""The real host that the local engine runs on: implements `host_port`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from io import FileIO
from pathlib import Path

import psutil

from supervisor.adapters.kernel import capacity, inspection, process_facts
from supervisor.adapters.kernel.exit_info import ExitInfo, exit_info
from supervisor.adapters.kernel.oom_counter import OomCounter
from supervisor.adapters.kernel.open_files import is_open_by
from supervisor.adapters.kernel.process_facts import SigtermReaction
from supervisor.adapters.platforms import accelerators
from supervisor.adapters.platforms.accelerators import TPU, Holder, holders
from supervisor.adapters.processes.guard_client import GuardClient
from supervisor.adapters.processes.output import OutputPatterns, OutputPump, read_evidence
from supervisor.adapters.processes.progress import ProgressPipe
from supervisor.adapters.processes.snapshot_memory import SnapshotMemory
from supervisor.adapters.processes.worker_process import WorkerProcess
from supervisor.adapters.stores.requests import Request, take_requests
from supervisor.adapters.stores.space import free_bytes
from supervisor.adapters.stores.verified_steps import StepCheck, set_aside_damaged
from supervisor.checkpoints.step_check import DamagedStep
from supervisor.core.pipes import HeldPipes
from supervisor.engines import checkpoint_source
from supervisor.engines.checkpoint_finder import CheckpointFinder
from supervisor.engines.checkpoint_search import Wanted, search_for
from supervisor.engines.handles import Finder, FoundPlace, Watch
from supervisor.engines.holders import in_the_way
from supervisor.files import writing
from supervisor.host import tree
from supervisor.host.aside import aside
from supervisor.host.identity import Identity
from supervisor.host.notice import Notice, Tell
from supervisor.protocol import reading, removal, simulated
from supervisor.protocol.committed import OwnNames
from supervisor.protocol.epochs import SavedStep
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import Message
from supervisor.protocol.removal import Place
from supervisor.protocol.standby import StandbyOrders, send_orders

_TELL_TIMEOUT = 1.0
"""Seconds to write the orders of a standby; they fit into the socket's buffer."""


class _Processes:
    """Implements `host_port.Processes`."""

    def __init__(self, guard: GuardClient) -> None:
        self._guard = guard

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        inherit: Sequence[int] = (),
    ) -> WorkerProcess:
        return WorkerProcess(self._guard, argv, env=env, output=output, inherit=inherit)

    def kill(self, spared: Collection[int] = ()) -> bool:
        return self._guard.kill(spared)

    @property
    def pause(self) -> float:
        return self._guard.pause

    def give_up_early(self) -> None:
        self._guard.give_up_early()

    def give_up_early_on_idle(self) -> None:
        self._guard.give_up_early_on_idle()

    def refresh(self) -> None:
        self._guard.refresh()

    def orphans(self) -> list[tuple[int, tree.Stat]] | None:
        return self._guard.orphans()

    def orphan_exit(self, pid: int) -> int | None:
        return self._guard.orphan_exit(pid)

    def exit_info(self, pid: int, seen: tree.Stat) -> ExitInfo | None:
        return exit_info(pid, seen)

    def is_shell(self, pid: int) -> bool:
        return process_facts.is_shell(pid)

    def losses(self) -> Callable[[], int]:
        return self._guard.losses()

    def lives(self, pid: int) -> bool:
        return tree.lives(pid)

    def send(self, pid: int, seen: tree.Stat, number: int) -> bool:
        return tree.send(pid, seen, number)

    def state(self, pid: int) -> str:
        return inspection.describe_process(pid)

    def handles(self, pid: int, number: int) -> bool:
        return process_facts.handles(pid, number)

    def handles_only_sigint(self, pid: int) -> bool:
        return process_facts.handles_only_sigint(pid)

    def sigterm_reaction(self, pid: int) -> SigtermReaction:
        return process_facts.sigterm_reaction(pid)

    def command_line(self, pid: int, redact: Callable[[str], str]) -> str:
        return process_facts.command_line(pid, redact)

    def foreground_children(self, pid: int) -> list[tuple[int, tree.Stat]]:
        return process_facts.foreground_children(pid)

    def programs_below(self, pid: int) -> list[tuple[int, tree.Stat]]:
        return process_facts.programs_below(pid)

    def run_by_shell(self, pid: int) -> list[tuple[int, tree.Stat]]:
        return process_facts.run_by_shell(pid)

    def unasked_below(self, pid: int) -> list[tuple[int, tree.Stat]]:
        return process_facts.unasked_below(pid)

    def python_programs(self, pid: int) -> list[tuple[int, tree.Stat]]:
        return process_facts.python_programs(pid)

    def pipes(self, pid: int) -> HeldPipes:
        return process_facts.pipes(pid)

    def cpu_seconds(self, pid: int) -> float:
        return inspection.cpu_seconds(pid)

    def ran_and_waited(self, pid: int) -> tuple[int, int]:
        return capacity.ran_and_waited(pid)

    def resident(self, pid: int) -> int:
        return capacity.resident_memory(pid)

    def lower_priority(self, pid: int) -> None:
        with suppress(psutil.NoSuchProcess):  # it has ended, which is seen elsewhere
            psutil.Process(pid).ionice(psutil.IOPRIO_CLASS_IDLE)

    def dump_native_stacks(self, pid: int, path: Path) -> int | None:
        return inspection.dump_native_stacks(self._guard, pid, path)


class _Channels:
    """Implements `host_port.Channels`."""

    def output(
        self,
        path: Path,
        patterns: OutputPatterns,
        mirror: Callable[[bytes], None] | None,
        on_error: Tell,
    ) -> OutputPump:
        return OutputPump(path, patterns, mirror, on_error)

    def progress(
        self, on_message: Callable[[Message], None], on_refused: Callable[[str], None]
    ) -> ProgressPipe:
        return ProgressPipe(on_message, on_refused)

    def connection(self) -> _Sockets:
        return _Sockets()

    def snapshot_memory(self) -> SnapshotMemory:
        return SnapshotMemory()

    def output_file(self) -> _MemoryFile:
        return _MemoryFile()


class _Files:
    """Implements `host_port.HostFiles`."""

    def read(self, path: Path, limit: int, below: Path) -> bytes:
        return aside(str(below)).ask(lambda: reading.read(path, limit, below=below))

    def exists(self, path: Path, below: Path) -> bool:
        try:
            return aside(str(below)).ask(path.exists)
        except OSError:  # Path.exists raises it too, where a file system fails (Python 3.11)
            return False

    def success_file_exists(self, place: str) -> bool:
        uri = Uri.parse(place)
        if uri is not None:
            return checkpoint_source.object_exists(uri)
        return aside(str(Path(place).parent)).ask(Path(place).exists)

    def evidence(self, path: Path, below: Path) -> str:
        return aside(str(below)).ask(lambda: read_evidence(path))

    def free_bytes(self, directory: Path) -> int | None:
        try:
            return aside(str(directory)).ask(lambda: free_bytes(directory))
        except TimeoutError:
            return None

    def opened(
        self, path: Path, *, new: bool = False, below: Path | None = None
    ) -> AbstractContextManager[FileIO]:
        return writing.opened(path, new=new, below=below)

    def make_directory(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def remove(self, place: Place, path: Path, below: Path) -> None:
        removal.remove_file(place, path, below=below)

    def read_requests(
        self,
        model_dir: Path,
        on_request: Callable[[Request], None],
        refused: Tell,
    ) -> None:
        def read() -> None:  # each file is removed, so report it even if the next one hangs
            for request in take_requests(model_dir, refused, Identity.of_this_process()):
                on_request(request)

        aside(str(model_dir)).ask(read)

    def newest_checkpoint(
        self, place: Path | Uri, own: OwnNames | None = None, *, closed: bool = False
    ) -> int | None:
        return checkpoint_source.newest_checkpoint(place, own, closed=closed)

    def unproven_step(
        self, place: Path | Uri, own: OwnNames | None, committed: int | None
    ) -> int | None:
        return checkpoint_source.unproven_step(place, own, committed)

    def torn_step(
        self, place: Path | Uri, own: OwnNames | None, committed: int | None, *, new: bool
    ) -> Path | None:
        return checkpoint_source.torn_step(place, own, committed, new=new)

    def seconds_since_commit(
        self, place: Path | Uri, own: OwnNames | None, step: int
    ) -> float | None:
        return checkpoint_source.seconds_since_commit(place, own, step)

    def watch_checkpoints(
        self,
        place: Path | Uri,
        workers: Callable[[], Iterable[int]],
        on_commit: Callable[[SavedStep], None],
        on_lower: Callable[[SavedStep], None],
        on_error: Tell,
        own: OwnNames | None = None,
    ) -> Watch:
        return checkpoint_source.watch(place, workers, on_commit, on_lower, on_error, own)

    def find_checkpoints(
        self,
        wanted: Wanted,
        on_found: Callable[[FoundPlace], None],
        on_others: Callable[[Path, Mapping[Path, int]], None],
        on_commit: Callable[[SavedStep], None],
        on_lower: Callable[[SavedStep], None],
        on_error: Tell,
    ) -> Finder:
        search = search_for(wanted, _working_directory(), _shared_folders(), time.time())
        return CheckpointFinder(
            search,
            lambda place, layout, closed: checkpoint_source.steps_in(
                place, wanted.writers, layout, closed
            ),
            lambda place, layout: checkpoint_source.watch(
                place, wanted.writers, on_commit, on_lower, on_error, layout
            ),
            lambda place, layout: checkpoint_source.watch(
                place, wanted.writers, on_lower, on_lower, on_error, layout, goes_on=True
            ),
            on_found,
            on_others,
        )

    def check_checkpoints(self, directory: Path, model_dir: Path) -> StepCheck:
        return StepCheck(directory, model_dir, lambda files: is_open_by(tree.pids(), files))

    def set_aside_damaged(self, damaged: DamagedStep, model_dir: Path) -> Path:
        place = str(damaged.path.parent)
        return aside(place).ask(lambda: set_aside_damaged(damaged, model_dir))


class _Resources:
    """Implements `host_port.Resources`."""

    def __init__(self, simulated_devices: Path) -> None:
        self._simulated_devices = simulated_devices

    def free_ports(self, count: int) -> tuple[int, ...]:
        return capacity.free_ports(count)

    def available_memory(self) -> int:
        return capacity.available_memory()

    def oom_kills(self) -> OomCounter:
        return OomCounter(os.getpid())  # which counts for the cgroups below ours too

    def chip_holders(self) -> Iterable[Holder]:
        return holders(TPU)

    def has_chips(self) -> bool:
        return bool(accelerators.chips())

    def broken_devices(self) -> simulated.Broken:
        return simulated.read(self._simulated_devices)

    def describe_device_holders(self, redact: Callable[[str], str]) -> Iterable[Notice]:
        return in_the_way(redact)


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError:  # it was removed: then nothing is in it, and relative paths lead nowhere
        return Path("/")


def _shared_folders() -> tuple[Path, ...]:
    """Returns folders in which every program writes."""
    home = os.path.expanduser("~")  # noqa: PTH111 (Path raises where there is no home)
    names = (home, os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp")
    return tuple(Path(name) for name in names if name)


class ThisHost(_Processes, _Channels, _Files, _Resources):
    """Implements `host_port.Host`."""

    def __init__(self, guard: GuardClient, simulated_devices: Path) -> None:
        """`guard` starts and kills the job's processes; the file `simulated_devices` names the
        simulated devices that are broken."""
        _Processes.__init__(self, guard)
        _Resources.__init__(self, simulated_devices)


class _Sockets:
    """Implements `handles.Connection`."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.descriptor, self.theirs = self._ours.fileno(), self._theirs.fileno()

    def close_theirs(self) -> None:
        self._theirs.close()

    def receive(self, most: int) -> bytes:
        return self._ours.recv(most)

    def send(self, data: bytes) -> None:
        self._ours.sendall(data)

    def send_orders(self, orders: StandbyOrders, descriptors: Sequence[int]) -> None:
        self._ours.settimeout(_TELL_TIMEOUT)
        with self._ours:
            send_orders(self._ours, orders, descriptors)

    def close(self) -> None:
        self._ours.close()


class _MemoryFile:
    """Implements `handles.Notes`."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("probe")

    def tail(self, most: int) -> bytes:
        size = os.fstat(self.descriptor).st_size
        return os.pread(self.descriptor, most, max(0, size - most))

    def close(self) -> None:
        os.close(self.descriptor)
