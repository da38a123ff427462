"""Reads the workers' reports from their progress pipes, and posts those that are news."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from supervisor.core.events import (
    DeviceFoundWrong,
    LossSpiked,
    Noticed,
    SaveMeasured,
    SilenceExcused,
    StragglerFound,
    WorkerReported,
)
from supervisor.engines.group import Member, WorkerGroup
from supervisor.engines.host_port import Compilations, MainLoop
from supervisor.engines.loss_watch import LossWatch
from supervisor.engines.shown_losses import ShownLosses
from supervisor.engines.snapshot_keeper import SnapshotKeeper
from supervisor.engines.straggler_watch import StragglerWatch
from supervisor.ports import Clock
from supervisor.protocol.loss_spikes import LossSpike
from supervisor.protocol.messages import (
    HostTimeMessage,
    Message,
    NoticeCode,
    NoticeMessage,
    RestoredMessage,
    SavedMessage,
    StepMessage,
    WrongDeviceMessage,
)
from supervisor.protocol.shortening import keep_beginning

_MAX_SHOWN = 300
"""The most characters of a worker's notice."""
_READING_PAUSE = 0.5
"""Seconds between two reads once steps come regularly: fast steps would wake us ten times a
second."""


class Hearing:
    """Listens to the workers of the present group."""

    def __init__(
        self,
        reactor: MainLoop,
        clock: Clock,
        compile_cache: Compilations,
        snapshots: SnapshotKeeper,
        look_ahead: Callable[[WorkerGroup], None],
        redact: Callable[[str], str],
    ) -> None:
        """`look_ahead` is called after each read of a pipe; `redact` removes secrets from workers'
        notices."""
        self._reactor = reactor
        self._clock = clock
        self._compile_cache = compile_cache
        self._snapshots = snapshots
        self._look_ahead = look_ahead
        self._redact = redact
        self._loss_watch = LossWatch()
        self._shown_losses = ShownLosses()
        self._stragglers = StragglerWatch()
        self._told: set[tuple[int, str]] = set()
        """Phase and text of the notices that are told once."""

    def begin(self, group: WorkerGroup, worker: Member) -> None:
        """Read the pipe of `worker` from now on."""
        self._reactor.watch(worker.pipe.read_end, lambda: self._read(group, worker))

    def on_message(self, group: WorkerGroup, rank: int, message: Message) -> None:
        """Handle a report of a worker. Reports found in the output come in another thread."""
        now = self._clock.now()
        if isinstance(message, HostTimeMessage):
            self._compare_hosts(group, rank, message, now)
            return
        if group.is_closed or not group.note_message(group.member(rank), message, now):
            return
        match message:
            case NoticeMessage(text, NoticeCode.RESUME_DIFFERS) if self._was_told(group, text):
                return
            case StepMessage():
                self._on_step(group, message, now)
            case NoticeMessage(text):
                message = replace(message, text=keep_beginning(self._redact(text), _MAX_SHOWN))
            case RestoredMessage(_, snapshot):
                self._snapshots.restored(snapshot=snapshot)
            case WrongDeviceMessage() | LossSpike():
                self._post_finding(group, message, now)
                return
            case SavedMessage(_, seconds):
                group.watcher.poll_now()
                if seconds is not None:
                    self._reactor.post(SaveMeasured(now, group.launch.attempt, seconds))
        self._reactor.post(WorkerReported(now, group.launch.attempt, rank, message))

    def ended_well(self, group: WorkerGroup) -> None:
        """All workers of the group have ended well."""
        doubtful = self._shown_losses.ended(group.launch.attempt)
        if doubtful is not None:
            self._reactor.post(Noticed(self._clock.now(), doubtful))

    def _on_step(self, group: WorkerGroup, message: StepMessage, now: float) -> None:
        losses = self._loss_watch.hear(group, message, now)
        if losses is not None:
            self._reactor.post(losses)
        spike = self._loss_watch.spike(group, message)
        if spike is not None:
            self._reactor.post(LossSpiked(now, group.launch.attempt, spike))
        doubtful = self._shown_losses.hear(group.launch.attempt, message)
        if doubtful is not None:
            self._reactor.post(Noticed(now, doubtful))
        if group.has_compiled and not message.recognised:
            group.has_compiled = False
            self._compile_cache.take_over()

    def _post_finding(
        self, group: WorkerGroup, message: WrongDeviceMessage | LossSpike, now: float
    ) -> None:
        """Pass on to the core what our trainer has found out about its own steps."""
        launch = group.launch
        if isinstance(message, LossSpike):
            self._reactor.post(LossSpiked(now, launch.attempt, message))
            return
        unit = launch.unit_of(message.rank, message.device)
        which = f"its device {message.device}: " if launch.hosts else ""
        text = which + self._redact(message.text)
        if unit is not None:
            self._reactor.post(DeviceFoundWrong(now, launch.attempt, unit, message.step, text))

    def _compare_hosts(
        self, group: WorkerGroup, rank: int, message: HostTimeMessage, now: float
    ) -> None:
        if group.launch.part is not None:  # the leader compares the ranks of all machines
            self._reactor.post(WorkerReported(now, group.launch.attempt, rank, message))
            return
        found = self._stragglers.hear(group.launch.attempt, rank, message)
        if found is None or group.is_closed:
            return
        host = group.launch.hosts[rank] if group.launch.hosts else f"rank {rank}"
        found = replace(found, host=host)
        self._reactor.post(StragglerFound(now, group.launch.attempt, found))

    def _was_told(self, group: WorkerGroup, text: str) -> bool:
        """Whether people know this notice from an earlier attempt, or from another rank."""
        told = group.launch.phase, text
        was_told = told in self._told
        self._told.add(told)
        return was_told

    def _read(self, group: WorkerGroup, worker: Member) -> None:
        now = self._clock.now()
        unheard = worker.unheard(now)
        if unheard and worker is group.speaker:
            self._reactor.post(SilenceExcused(now, unheard))
        if not worker.pipe.read():
            self._reactor.forget(worker.pipe.read_end)
            return
        self._look_ahead(group)
        if worker.is_on_its_way and worker.pipe.is_calm:
            self._reactor.forget(worker.pipe.read_end)
            self._reactor.call_later(_READING_PAUSE, lambda: self._read_again(group, worker))

    def _read_again(self, group: WorkerGroup, worker: Member) -> None:
        if not group.is_closed:
            self.begin(group, worker)
