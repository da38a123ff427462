"""The runtime's `World` on this host: carries out decisions, and delivers events.

It makes the directories and files of model_dir itself; everything else is the engine's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, assert_never

import yaml

from supervisor.adapters.stores.requests import (
    ClearQuarantine,
    Request,
    RestartJob,
    SaveJob,
    StopJob,
)
from supervisor.adapters.stores.space import Space
from supervisor.core.decisions import (
    AskToSave,
    BeginPhase,
    CancelLaunch,
    Decision,
    DumpStacks,
    FinishJob,
    KillWorkers,
    MakeRoom,
    ProbeDevices,
    SignalWorkers,
    StartWorkers,
    TellLivelock,
    TellRecovery,
    TellStages,
    Wait,
)
from supervisor.core.events import (
    Event,
    Noticed,
    PhaseBegun,
    QuarantineCleared,
    RestartRequested,
    SaveRequested,
    StopRequested,
    StopSource,
)
from supervisor.engines.engine import Engine
from supervisor.engines.host_port import EventLoop, HostFiles
from supervisor.engines.launch import Launch
from supervisor.files.attempts import attempt_folder, phase_folder
from supervisor.host.notice import Notice
from supervisor.model_dir_ownership import ModelDirError, Ownership
from supervisor.ports import Clock, Storage
from supervisor.prepare import Prepared
from supervisor.protocol import save_request

_REQUEST_INTERVAL = 5.0
_MAX_NOTICES = 20


class LocalWorld:
    """See `ports.World`."""

    def __init__(
        self,
        job: str,
        lineage: str,
        prepared: Prepared,
        config: Sequence[dict[str, Any]],
        storage: Storage,
        clock: Clock,
        reactor: EventLoop,
        engine: Engine,
        space: Space,
        ownership: Ownership,
        files: HostFiles,
    ) -> None:
        """`config` has the content of params.yaml for each phase."""
        self._job = job
        self._lineage = lineage
        self._ownership = ownership
        self._prepared = prepared
        self._params = [
            yaml.safe_dump(params, sort_keys=False, allow_unicode=True).encode()
            for params in config
        ]
        self._storage = storage
        self._clock = clock
        self._reactor = reactor
        self._engine = engine
        self._space = space
        self._files = files
        self._noticed: set[str] = set()
        self._stop_is_requested = False
        self._read_requests()

    def wait(self, until: float | None) -> Sequence[Event]:
        """See `ports.World`."""
        events = self._reactor.wait(until)
        self._ownership.check()
        return events

    def _read_requests(self) -> None:
        """Read what people request of the job in model_dir, now and every few seconds."""
        model_dir = self._prepared.job.model_dir

        def on_request(request: Request) -> None:
            now = self._clock.now()
            match request:
                case ClearQuarantine(units):
                    self._reactor.post(QuarantineCleared(now, units))
                case StopJob() if self._stop_is_requested:
                    pass  # two people ask for the same save: neither wants it cut short
                case StopJob(who):
                    self._stop_is_requested = True
                    detail = f"supervise stop, by {who}"
                    self._reactor.post(StopRequested(now, StopSource.PERSON, detail))
                case RestartJob(who):
                    self._reactor.post(RestartRequested(now, who))
                case SaveJob(who):
                    self._reactor.post(SaveRequested(now, who))

        try:
            self._files.read_requests(model_dir, on_request, self._notify_once)
        except OSError as error:
            self._notify_once(
                Notice(
                    "request-unheard",
                    f"requests in {model_dir} cannot be read: {error}",
                    reason=str(error),
                )
            )
        self._reactor.call_later(_REQUEST_INTERVAL, self._read_requests)

    def _notify_once(self, told: Notice) -> None:
        """Post a notice that was not posted before, but no more than `_MAX_NOTICES` of them."""
        if told not in self._noticed and len(self._noticed) < _MAX_NOTICES:
            self._noticed.add(told)
            self._reactor.post(Noticed(self._clock.now(), told))

    def carry_out(self, decision: Decision) -> None:
        """See `ports.World`.

        Raises:
            ModelDirError: a file that must be there cannot be written.
        """
        match decision:
            case BeginPhase(phase, _, checkpoints, kinds):
                self._begin_phase(phase, checkpoints, kinds)
            case StartWorkers():
                self._start(decision)
            case ProbeDevices(number, _, phase, units, _, left_out):
                self._engine.probe(self._prepared.plans[phase], number, units, left_out)
            case DumpStacks() | AskToSave() | CancelLaunch() | SignalWorkers():
                self._ask_workers(decision)
            case KillWorkers(_, exits, _, survivors):
                launch = self._launch(decision)
                self._engine.kill(launch, exits, survivors)
            case Wait(device_is_busy=True):
                self._engine.name_holders()
            case Wait() | TellRecovery() | TellStages() | TellLivelock() | FinishJob():
                pass  # for people only: the runtime waits and ends by the state
            case forgotten:
                assert_never(forgotten)

    def _start(self, decision: StartWorkers) -> None:
        wanted = decision.make_room
        if wanted is MakeRoom.ALWAYS or (wanted is not None and self._space.is_short):
            self._space.make_room()
        launch = self._launch(decision)
        launch = replace(
            launch,
            num_devices=decision.num_devices if launch.plan.num_devices is not None else None,
            units=decision.units,
            adjustments=decision.adjustments,
            failures=decision.failures,
            distrust=decision.distrust,
        )
        self._make_directory(f"{decision.directory}/{attempt_folder(decision.attempt)}")
        self._write_params(launch)
        self._engine.start(launch)

    def _ask_workers(self, decision: DumpStacks | AskToSave | CancelLaunch | SignalWorkers) -> None:
        match decision:
            case DumpStacks(attempt):
                self._engine.dump_stacks(attempt)
            case AskToSave():
                self._ask_to_save(decision)
            case CancelLaunch(attempt):
                self._engine.cancel_launch(attempt)
            case SignalWorkers(attempt, _, interrupt):
                self._engine.terminate(attempt, interrupt=interrupt)

    def _ask_to_save(self, decision: AskToSave) -> None:
        """Write the file that asks the workers for a checkpoint: see `protocol.save_request`."""
        name = f"{decision.directory}/{attempt_folder(decision.attempt)}/{save_request.NAME}"
        try:
            self._storage.replace(name, save_request.content(decision.who))
        except OSError as error:
            text = f"{name} cannot be written, so nobody is asked to save: {error.strerror}"
            told = Notice("file-unwritable", text, place=name, reason=error.strerror)
            self._reactor.post(Noticed(self._clock.now(), told))

    def _begin_phase(self, phase: int, checkpoints: str | None, kinds: tuple[str, ...]) -> None:
        wall = self._clock.wall()
        name = phase_folder(wall)
        while not self._make_directory(name, durable=True):
            wall += timedelta(seconds=1)
            name = phase_folder(wall)
        newest = newest_in(self._files, self._prepared, phase, checkpoints, kinds)
        self._reactor.post(PhaseBegun(self._clock.now(), phase, name, newest))

    def _launch(self, decision: StartWorkers | KillWorkers) -> Launch:
        attempt, phase = decision.attempt, decision.phase
        directory = self._storage.local_path(decision.directory)
        return Launch(
            job=self._job,
            lineage=self._lineage,
            owner=self._ownership.owner,
            attempt=attempt,
            phase=phase,
            plan=self._prepared.plans[phase].saving_in(decision.checkpoints, decision.kinds),
            success=self._prepared.policy.phases[phase].success,
            rules=self._prepared.rules[phase],
            model_dir=self._prepared.job.model_dir,
            directory=directory / attempt_folder(attempt),
            params=directory / "params.yaml",
        )

    def _make_directory(self, name: str, *, durable: bool = False) -> bool:
        try:
            return self._storage.make_directory(name, durable=durable)
        except OSError as error:
            raise ModelDirError(f"{name} cannot be made: {error.strerror}") from error

    def _write_params(self, launch: Launch) -> None:
        """Write params.yaml, unless it has the right content already.

        An error ends the supervisor only if the program reads the file (its command line or
        environment has `{params}`).

        Raises:
            ModelDirError: the program needs the file, and it cannot be written.
        """
        data = self._params[launch.phase]
        name = str(launch.params.relative_to(launch.model_dir))
        with suppress(OSError):  # it is missing or cannot be read: write it
            if self._storage.read(name, len(data)) == data:
                return
        try:
            self._storage.replace(name, data)
        except OSError as error:
            message = f"{name} cannot be written: {error.strerror}"
            if any("{params}" in value for value in (*launch.plan.argv, *launch.plan.env.values())):
                raise ModelDirError(message) from error
            told = Notice("file-unwritable", message, place=name, reason=error.strerror)
            self._reactor.post(Noticed(self._clock.now(), told))


def newest_in(
    files: HostFiles,
    prepared: Prepared,
    phase: int,
    checkpoints: str | None = None,
    kinds: tuple[str, ...] = (),
) -> int | None:
    """Returns the newest committed step of a phase; None if there is none.

    `checkpoints` is the directory in which its checkpoints were found, `kinds` the names that
    count there: see `JobState`.

    Raises:
        ModelDirError: the checkpoints cannot be listed.
    """
    plan = prepared.plans[phase].saving_in(checkpoints, kinds)
    directory = plan.checkpoint_dir
    try:
        return files.newest_checkpoint(directory, plan.own_layout, closed=plan.is_command)
    except OSError as error:
        text = f"{error.filename or directory} cannot be read: {error.strerror or error}"
        raise ModelDirError(text) from error
