"""Files, checkpoints and resources of the simulated machine, as the engine uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import ENOENT
from pathlib import Path

from supervisor.adapters.platforms.accelerators import Holder
from supervisor.adapters.stores.checkpoint_watcher import CheckpointPoller
from supervisor.adapters.stores.requests import Request
from supervisor.checkpoints.step_check import DamagedStep
from supervisor.engines.checkpoint_search import Wanted
from supervisor.engines.handles import Check, Finder, FoundPlace
from supervisor.host.notice import Notice, Tell
from supervisor.protocol.committed import OwnNames
from supervisor.protocol.epochs import SavedStep
from supervisor.protocol.location import Uri
from supervisor.protocol.removal import Place
from supervisor.protocol.simulated import Broken
from tests.simulation.pipes import NoteEnds
from tests.simulation.true_host import TrueHost

_GIBIBYTE = 1 << 30


class SimulatedFiles:
    """See `engines.host_port.HostFiles` and `engines.host_port.Resources`."""

    host: TrueHost
    phase: int
    """The phase of the attempt that was started or killed last."""

    @property
    def is_gone(self) -> bool:
        """Whether the supervisor has ended."""
        raise NotImplementedError

    def output_file(self) -> NoteEnds:
        """See `Channels`."""
        raise NotImplementedError

    def read(self, path: Path, limit: int, below: Path) -> bytes:
        """See `HostFiles`."""
        self.host.disk.read(path)
        if str(path) not in self.host.kept:
            raise FileNotFoundError(ENOENT, "No such file or directory", str(path))
        return self.host.kept[str(path)][:limit]

    def exists(self, path: Path, below: Path) -> bool:
        """See `HostFiles`."""
        return str(path) in self.host.kept and not self.host.disk.is_away

    def success_file_exists(self, place: str) -> bool:
        """See `HostFiles`."""
        self.host.disk.read(place)
        return self.phase in self.host.work.files

    def evidence(self, path: Path, below: Path) -> str:
        """See `HostFiles`."""
        self.host.disk.read(path)
        return self.host.outputs[str(path)].evidence() if str(path) in self.host.outputs else ""

    def free_bytes(self, directory: Path) -> int | None:
        """See `HostFiles`."""
        if self.host.disk.is_away:
            return None
        return 0 if self.host.disk.is_full else 100 * _GIBIBYTE

    @contextmanager
    def opened(
        self, path: Path, *, new: bool = False, below: Path | None = None
    ) -> Iterator[_Opened]:
        """See `HostFiles`."""
        self.host.disk.write(path)
        notes = self.output_file()
        yield _Opened(notes.descriptor)

    def make_directory(self, path: Path) -> None:
        """See `HostFiles`."""
        self.host.disk.write(path)

    def remove(self, place: Place, path: Path, below: Path) -> None:
        """See `HostFiles`."""
        self.host.disk.read(path)
        self.host.kept.pop(str(path), None)

    def read_requests(
        self,
        model_dir: Path,
        on_request: Callable[[Request], None],
        refused: Tell,
    ) -> None:
        """See `HostFiles`."""
        self.host.disk.read(model_dir)

    def newest_checkpoint(
        self, place: Path | Uri, own: OwnNames | None = None, *, closed: bool = False
    ) -> int | None:
        """See `HostFiles`."""
        assert isinstance(place, Path)
        self.host.disk.read(place)
        return self.host.work.newest(int(place.name))

    def unproven_step(
        self, place: Path | Uri, own: OwnNames | None, committed: int | None
    ) -> int | None:
        """See `HostFiles`. Our trainer commits all that it saves."""
        return None

    def torn_step(
        self, place: Path | Uri, own: OwnNames | None, committed: int | None, *, new: bool
    ) -> Path | None:
        """See `HostFiles`. Our trainer commits all that it saves."""
        return None

    def seconds_since_commit(
        self, place: Path | Uri, own: OwnNames | None, step: int
    ) -> float | None:
        """See `HostFiles`. Nothing doubts what our trainer commits."""
        return None

    def watch_checkpoints(
        self,
        place: Path | Uri,
        workers: Callable[[], Iterable[int]],
        on_commit: Callable[[SavedStep], None],
        on_lower: Callable[[SavedStep], None],
        on_error: Tell,
        own: OwnNames | None = None,
    ) -> _Watch:
        """See `HostFiles`."""

        def newest() -> SavedStep | None:
            step = self.newest_checkpoint(place)
            return None if step is None else SavedStep(step)

        poller = CheckpointPoller(place, newest, on_commit, on_error)
        return _Watch(self, poller)

    def find_checkpoints(
        self,
        wanted: Wanted,
        on_found: Callable[[FoundPlace], None],
        on_others: Callable[[Path, Mapping[Path, int]], None],
        on_commit: Callable[[SavedStep], None],
        on_lower: Callable[[SavedStep], None],
        on_error: Tell,
    ) -> Finder:
        """See `HostFiles`. The simulated jobs are of our trainer, whose directory is known."""
        raise NotImplementedError

    def check_checkpoints(self, directory: Path, model_dir: Path) -> Check:
        """See `HostFiles`. Only a command is asked for it."""
        raise NotImplementedError

    def set_aside_damaged(self, damaged: DamagedStep, model_dir: Path) -> Path:
        """See `HostFiles`. Only a command is asked for it."""
        raise NotImplementedError

    # --- resources --------------------------------------------------------------------------------

    def free_ports(self, count: int) -> tuple[int, ...]:
        """See `Resources`."""
        return tuple(range(7000, 7000 + count))

    def available_memory(self) -> int:
        """See `Resources`."""
        return 64 * _GIBIBYTE

    def oom_kills(self) -> _NoOomKills:
        """See `Resources`."""
        return _NoOomKills()

    def chip_holders(self) -> Sequence[Holder]:
        """See `Resources`."""
        return self.host.chips.holders

    def has_chips(self) -> bool:
        """See `Resources`."""
        return True

    def broken_devices(self) -> Broken:
        """See `Resources`."""
        return Broken(
            lost=frozenset(self.host.devices.missing), wrong=frozenset(self.host.devices.wrong)
        )

    def describe_device_holders(self, redact: Callable[[str], str]) -> Sequence[Notice]:
        """See `Resources`."""
        return self.host.chips.in_the_way


class _Opened:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """See `handles.OpenFile`."""
        return self._descriptor


class _NoOomKills:
    def rise(self) -> int | None:
        """See `handles.OomKills`."""
        return None


class _Watch:
    """See `handles.Watch`. What its thread would do happens as callbacks in virtual time."""

    def __init__(self, machine: SimulatedFiles, poller: CheckpointPoller[SavedStep]) -> None:
        self._machine = machine
        self._poller = poller
        self._turns = 0
        machine.host.later(0.0, lambda: self._turn(0))

    @property
    def has_new_checkpoint(self) -> bool:
        """See `handles.Watch`."""
        return self._poller.has_new_checkpoint

    def poll_now(self) -> None:
        """See `handles.Watch`."""
        turn = self._turns
        self._machine.host.later(0.0, lambda: self._go_on(turn, asked=True))

    def stop(self) -> None:
        """See `handles.Watch`."""
        self._poller.is_stopped = True

    def last_lower(self, *, closed: bool) -> tuple[SavedStep, ...]:
        """See `handles.Watch`. The simulated steps only rise."""
        return ()

    def _turn(self, turn: int) -> None:
        if self._poller.is_stopped or self._machine.is_gone or turn != self._turns:
            return
        pause = self._poller.poll()
        self._machine.host.later(pause, lambda: self._go_on(turn, asked=False))

    def _go_on(self, turn: int, *, asked: bool) -> None:
        if turn == self._turns:
            self._turns += 1
            self._poller.note_pause(asked=asked)
            self._turn(self._turns)
