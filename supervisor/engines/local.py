"""Runs worker groups as processes on this host."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from supervisor.adapters import memory
from supervisor.adapters.cgroup import OomCounter
from supervisor.adapters.checkpoints import CheckpointWatcher, newest_committed
from supervisor.adapters.compile_cache import CompileCache
from supervisor.adapters.output import OutputPatterns, OutputPump, read_evidence
from supervisor.adapters.processes import WorkerProcess, kill_descendants, reap_orphans
from supervisor.adapters.progress import ProgressPipe
from supervisor.adapters.reactor import Reactor
from supervisor.adapters.snapshots import SnapshotMemory
from supervisor.adapters.space import free_bytes
from supervisor.adapters.stacks import describe_process, dump_native_stacks
from supervisor.config import placeholders
from supervisor.config.plan import PhasePlan
from supervisor.core.events import (
    CheckpointCommitted,
    LaunchFailed,
    Noticed,
    WorkerReported,
    WorkersGone,
    WorkersObserved,
    WorkersStarted,
)
from supervisor.core.failure import Evidence, Failure, HostFacts, RankEvidence, WorkerExit
from supervisor.core.policy import Success
from supervisor.core.rules import Rule
from supervisor.core.verdicts import judge, launch_failure
from supervisor.engines.python_program import bootstrapped
from supervisor.engines.snapshots import SnapshotKeeper
from supervisor.engines.standby import Standbys, Start, choose
from supervisor.ports import Clock
from supervisor.protocol import environment
from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.drills import Drill
from supervisor.protocol.environment import WorkerIdentity
from supervisor.protocol.failure import FailureRecord, parse_failure_record
from supervisor.protocol.messages import (
    AdjustableMessage,
    DevicesMessage,
    Message,
    RestoredMessage,
    SavedMessage,
    StacksMessage,
    Stage,
    StageMessage,
    StepMessage,
)
from supervisor.protocol.stacks import STACK_SIGNAL
from supervisor.protocol.standby import OUTPUT

_OBSERVE_INTERVAL = 5.0
_DRAIN_OUTPUT = 5.0
_READING_PAUSE = 0.5
"""Seconds, once the job is on its way: who reads each step at once is awake ten times a second."""
_STEADY = 3
"""Reports of steps after which the job is on its way: time to prepare for the next failure."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What an attempt of a phase is started from. Paths are absolute."""

    job: str
    lineage: str
    attempt: int
    phase: int
    plan: PhasePlan
    success: Success
    rules: tuple[Rule, ...]
    model_dir: Path
    directory: Path
    """The attempt's own directory."""
    params: Path
    """The phase's resolved config."""
    adjustments: Adjustments
    follows_on: Failure | None
    """What the attempt before it ended with."""


@dataclass(slots=True)
class _Group:
    """The live worker group. One worker so far: rank 0."""

    launch: Launch
    start: Start
    worker: WorkerProcess
    pump: OutputPump
    pipe: ProgressPipe
    watcher: CheckpointWatcher
    drills: list[Drill]
    """What the attempt still had before it when it started."""
    oom: OomCounter
    exits: list[WorkerExit] = field(default_factory=list)
    dumps_stacks: bool = False
    stage: Stage | None = None
    step: int | None = None
    has_compiled: bool = False
    """Since its compilations were last taken over."""
    resumed_from: int | None = None
    from_snapshot: bool = False
    adjustable: tuple[str, ...] = ()
    platform: str | None = None
    reports: int = 0
    """How many times it has told a step."""


class LocalEngine:
    """Starts, signals and kills the one worker group of this host. Posts what comes of it."""

    def __init__(
        self,
        reactor: Reactor,
        clock: Clock,
        environ: Mapping[str, str],
        mirror: Callable[[bytes], None] | None,
        compile_cache: CompileCache,
        redact: Callable[[str], str] = str,
    ) -> None:
        """`environ` is what workers inherit; rank 0's output also goes to `mirror`, if given.

        `redact` takes the secrets out of what is told of a failure.
        """
        self._reactor = reactor
        self._clock = clock
        self._environ = environment.scrubbed(environ)
        self._mirror = mirror
        self._compile_cache = compile_cache
        self._redact = redact
        self._group: _Group | None = None
        self._snapshots = SnapshotKeeper(self._notice, self._mention)
        self._standbys = Standbys(reactor, self._notice, self._mention)

    @property
    def directory(self) -> Path | None:
        """The directory of the attempt that runs."""
        return self._group.launch.directory if self._group is not None else None

    def start(self, launch: Launch) -> None:
        """Start the attempt's workers. Answered by `WorkersStarted` or `LaunchFailed`."""
        began = self._clock.now()
        argv, env = self._command(launch)
        memory = self._snapshot_memory(launch)
        pipe = ProgressPipe(
            lambda message: self._heard(launch.attempt, message),
            lambda why: self._notice(f"a message of rank 0 was refused: {why}"),
        )
        pump = OutputPump(
            launch.directory / "rank0.log", self._patterns(launch), self._mirror, self._notice
        )
        start = Start(tuple(argv), {**env, **pipe.to_environment()})
        descriptors = {environment.PROGRESS_FD: pipe.write_end}
        if memory is not None:
            start = Start(start.argv, {**start.env, **memory.to_environment()})
            descriptors[environment.SNAPSHOT_FD] = memory.descriptor
        try:
            worker, standby = self._worker(launch, start, descriptors, pump)
        except OSError as error:
            pipe.close_write_end()
            pipe.close()
            pump.abandon()
            failure = self._redacted(launch_failure(error, start.argv))
            self._reactor.post(LaunchFailed(self._clock.now(), launch.attempt, failure))
            return
        pipe.close_write_end()
        pump.start()
        drills = _pending_drills(launch)
        oom = OomCounter(os.getpid())  # a worker is born into our cgroup, and may be dead by now
        watcher = self._watcher(launch)
        self._group = _Group(launch, start, worker, pump, pipe, watcher, drills, oom)
        for drill in drills:
            self._notice(f"DRILL armed: {drill.describe()}")
        self._reactor.watch(pipe.read_end, self._read_progress)
        self._reactor.watch(worker.pidfd, self._worker_ended)
        self._reactor.call_later(_OBSERVE_INTERVAL, lambda: self._look_again(launch.attempt))
        now, pids = self._clock.now(), (worker.pid,)
        self._reactor.post(WorkersStarted(now, launch.attempt, pids, began, standby))

    def dump_stacks(self, attempt: int) -> None:
        """Have the attempt's workers write down what they are doing, by all means there are."""
        group = self._group
        if group is None or group.launch.attempt != attempt:
            return
        found = describe_process(group.worker.pid)  # before the signal wakes it up
        if group.dumps_stacks:
            group.worker.signal(STACK_SIGNAL)
        try:
            dump_native_stacks(group.worker.pid, group.launch.directory / "rank0.native-stacks.txt")
        except OSError as error:
            self._notice(f"the native stacks of rank 0 cannot be taken: {error}")
        self._notice(
            f"rank 0 (pid {group.worker.pid}) is {found}; its stacks are in attempts/{attempt:04d}"
        )

    def terminate(self, attempt: int) -> None:
        """Ask the attempt's workers to save and exit."""
        if self._group is not None and self._group.launch.attempt == attempt:
            self._group.worker.signal(signal.SIGTERM)

    def kill(self, launch: Launch, exits: tuple[WorkerExit, ...]) -> None:
        """Kill all that is left of the attempt. Answered by `WorkersGone` once nothing is.

        `exits` is what is known of an attempt that an earlier supervisor started.
        """
        group = self._group
        if group is None or group.launch.attempt != launch.attempt:
            if kill_descendants((), self._standbys.pids):
                self._reactor.call_later(0.0, lambda: self.kill(launch, exits))
            else:
                self._gone(launch, exits, None)
            return
        alive = kill_descendants((group.worker.pid,), self._standbys.pids)
        if alive or not self._has_ended(group):
            self._reactor.call_later(0.0, lambda: self.kill(launch, exits))
            return
        self._close(group)
        self._gone(launch, tuple(group.exits), group)

    # --- starting ---------------------------------------------------------------------------

    def _command(self, launch: Launch) -> tuple[list[str], dict[str, str]]:
        plan = launch.plan
        values = self._placeholders(launch)
        identity = WorkerIdentity(
            launch.job, launch.attempt, num_devices=plan.num_devices, lineage=launch.lineage
        )
        inherited = {
            **self._environ,
            **{name: placeholders.expand(value, values) for name, value in plan.env.items()},
        }
        env = {
            **inherited,
            **self._compile_cache.environment(inherited),
            **identity.to_environment(),
            **launch.adjustments.to_environment(),
            environment.FAILURE_FILE: str(launch.directory / "rank0.failure.json"),
            environment.EXECUTABLES: str(launch.model_dir / "compile_cache" / "executables"),
            environment.STACKS_FILE: str(launch.directory / "rank0.stacks.txt"),
        }
        if drills := _pending_drills(launch):
            given = {
                "drills": [asdict(drill) for drill in drills],
                "records": str(_drill_records(launch)),
            }
            env[environment.FAULTS] = json.dumps(given)
        if plan.bootstrap:
            env[environment.MODULES_FILE] = str(_modules_file(launch))
        if plan.progress_pattern is not None:
            env[environment.STEPS_FROM_OUTPUT] = "1"
        argv = [placeholders.expand(text, values) for text in plan.argv]
        if plan.bootstrap:
            argv, why_not = bootstrapped(argv)
            if why_not is not None:
                self._notice(f"the program runs as it is, without the bootstrap: {why_not}")
        return argv, env

    def _placeholders(self, launch: Launch) -> dict[str, str]:
        newest = self._newest(launch.plan.checkpoints)
        devices, batch = launch.plan.num_devices, launch.plan.global_batch
        return {
            "model_dir": str(launch.model_dir),
            "num_devices": str(devices or ""),
            "per_device_batch": str(batch // devices) if batch and devices else "",
            "attempt": str(launch.attempt),
            "resume_step": str(newest or 0),
            "params": str(launch.params),
        }

    def _snapshot_memory(self, launch: Launch) -> SnapshotMemory | None:
        if not launch.plan.snapshots:
            return None
        newest = self._newest(launch.plan.checkpoints)
        return self._snapshots.lend(launch.phase, launch.follows_on, newest)

    def _patterns(self, launch: Launch) -> OutputPatterns:
        progress, success = launch.plan.progress_pattern, launch.success.pattern
        return OutputPatterns(
            step=re.compile(progress) if progress is not None else None,
            on_step=lambda step: self._heard(launch.attempt, StepMessage(step)),
            success=re.compile(success) if success is not None else None,
        )

    def _watcher(self, launch: Launch) -> CheckpointWatcher:
        return CheckpointWatcher(
            launch.plan.checkpoints,
            lambda step: self._reactor.post(
                CheckpointCommitted(self._clock.now(), launch.phase, step)
            ),
            self._notice,
        )

    def _worker(
        self, launch: Launch, start: Start, descriptors: Mapping[str, int], pump: OutputPump
    ) -> tuple[WorkerProcess, bool]:
        """The attempt's worker, with these descriptors, and whether it was the standby: else it is
        started now."""
        told = {OUTPUT: pump.write_end, **descriptors}
        taken = self._standbys.take(launch.plan.name, start, told)
        if taken is not None:
            self._mention(f"the standby ({taken.mode}) takes over")
            return taken.process, True
        inherit = tuple(descriptors.values())
        cold = WorkerProcess(start.argv, env=start.env, output=pump.write_end, inherit=inherit)
        return cold, False

    def _prepare_standby(self, group: _Group) -> None:
        """Have a standby for what comes after this attempt.

        Only in the main thread: a standby dies with the thread that starts it.
        """
        launch, plan = group.launch, group.launch.plan
        if plan.standby == "off" or (plan.is_command and not plan.bootstrap) or group.exits:
            return
        if not self._standbys.wants_one(plan.name):
            return
        extra = {}
        if plan.bootstrap and plan.preload is not None:
            extra[environment.PRELOAD] = ",".join(plan.preload)
        elif plan.bootstrap:
            extra[environment.MODULES_FILE] = str(_modules_file(launch))
        mode = choose(
            plan.standby,
            platform=plan.platform or group.platform,
            knows_how=not plan.is_command,
            held=memory.resident(group.worker.pid),
            available=memory.available(),
        )
        if mode is None:
            self._standbys.give_up(plan.name, "there is not enough memory for one")
        else:
            output = launch.directory.parent / "standby.log"
            self._standbys.prepare(plan.name, group.start, mode, extra, output)

    # --- watching ---------------------------------------------------------------------------

    def _heard(self, attempt: int, message: Message) -> None:
        group = self._group
        if group is not None and group.launch.attempt == attempt:
            match message:
                case StageMessage(stage, step):
                    group.stage = stage
                    group.step = step if step is not None else group.step
                    group.has_compiled |= stage in (Stage.COMPILING, Stage.EVALUATING)
                case StepMessage(step):
                    group.step = step
                    group.reports += 1
                    if group.has_compiled:
                        group.has_compiled = False
                        self._compile_cache.take_over()
                case RestoredMessage(step, snapshot):
                    group.resumed_from, group.from_snapshot = step, snapshot
                    self._snapshots.restored(snapshot=snapshot)
                case SavedMessage():
                    group.watcher.look_now()
                case DevicesMessage(platform):
                    group.platform = platform
                case AdjustableMessage(names):
                    group.adjustable = names
                case StacksMessage():
                    group.dumps_stacks = True
        self._reactor.post(WorkerReported(self._clock.now(), attempt, 0, message))

    def _read_progress(self) -> None:
        group = self._group
        assert group is not None
        if not group.pipe.read():
            self._reactor.forget(group.pipe.read_end)
            return
        if _is_steady(group):
            self._prepare_standby(group)
        if group.reports >= _STEADY and group.pipe.is_calm:
            self._reactor.forget(group.pipe.read_end)
            self._reactor.call_later(_READING_PAUSE, lambda: self._read_again(group))

    def _read_again(self, group: _Group) -> None:
        if self._group is group:
            self._reactor.watch(group.pipe.read_end, self._read_progress)

    def _worker_ended(self) -> None:
        group = self._group
        assert group is not None
        if self._has_ended(group):
            self._reactor.forget(group.worker.pidfd)
            group.pipe.read()  # what it did before comes first
            self._observe(group)

    def _has_ended(self, group: _Group) -> bool:
        if not group.exits and (ended := group.worker.poll(rank=0)) is not None:
            group.exits.append(ended)
        return bool(group.exits)

    def _look_again(self, attempt: int) -> None:
        if self._group is not None and self._group.launch.attempt == attempt:
            reap_orphans((self._group.worker.pid, *self._standbys.pids))
            self._observe(self._group)
            if _is_steady(self._group):
                self._prepare_standby(self._group)
            self._reactor.call_later(_OBSERVE_INTERVAL, lambda: self._look_again(attempt))

    def _observe(self, group: _Group) -> None:
        self._snapshots.look()
        attempt, pids = group.launch.attempt, (group.worker.pid,)
        event = WorkersObserved(self._clock.now(), attempt, pids, tuple(group.exits))
        self._reactor.post(event)

    def _notice(self, text: str) -> None:
        self._reactor.post(Noticed(self._clock.now(), text))

    def _mention(self, text: str) -> None:
        self._reactor.post(Noticed(self._clock.now(), text, routine=True))

    def _newest(self, directory: Path) -> int | None:
        try:
            return newest_committed(directory)
        except OSError as error:
            self._notice(f"{directory} cannot be read: {error.strerror}")
            return None

    # --- ending -----------------------------------------------------------------------------

    def _close(self, group: _Group) -> None:
        """Take what the dead workers left in their pipes, and let go of everything."""
        group.watcher.stop()
        group.pipe.read()
        self._reactor.forget(group.pipe.read_end)
        self._reactor.forget(group.worker.pidfd)
        group.pipe.close()
        group.worker.close()
        if not group.pump.finish(_DRAIN_OUTPUT):
            self._notice("somebody outside this job still holds the worker's output open")
        for drill in group.drills:
            if drill not in _pending_drills(group.launch):
                self._notice(f"DRILL fired, as the config asks: {drill.describe()}")
        self._group = None

    def _gone(self, launch: Launch, exits: tuple[WorkerExit, ...], group: _Group | None) -> None:
        """Judge the attempt by what it left, and say that it is gone."""
        at = self._clock.now()
        self._compile_cache.settle()
        committed = self._newest(launch.plan.checkpoints)
        step = group.step if group is not None else None
        evidence = Evidence(
            ranks=tuple(self._rank_evidence(launch, ended, group) for ended in exits),
            step=step,
            committed=committed,
            pattern_seen=group is not None and group.pump.success_seen,
            file_exists=self._success_file_exists(launch),
            host=HostFacts(
                oom_kills=group.oom.rise() if group is not None else 0,
                free_disk=free_bytes(launch.model_dir),
            ),
        )
        failure = judge(evidence, launch.success, launch.rules)
        self._reactor.post(
            WorkersGone(
                at,
                launch.attempt,
                self._redacted(failure) if failure is not None else None,
                resumed_from=group.resumed_from if group is not None else None,
                step=step,
                committed=committed,
                adjustable=group.adjustable if group is not None else (),
                from_snapshot=group is not None and group.from_snapshot,
            )
        )

    def _redacted(self, failure: Failure) -> Failure:
        return replace(
            failure,
            root_cause=self._redact(failure.root_cause),
            traceback=self._redact(failure.traceback),
        )

    def _rank_evidence(
        self, launch: Launch, ended: WorkerExit, group: _Group | None
    ) -> RankEvidence:
        return RankEvidence(
            exit=ended,
            record=self._failure_record(launch.directory / f"rank{ended.rank}.failure.json"),
            output=(
                group.pump.evidence()
                if group is not None
                else read_evidence(launch.directory / f"rank{ended.rank}.log")
            ),
            stage=group.stage if group is not None else None,
        )

    def _failure_record(self, path: Path) -> FailureRecord | None:
        try:
            return parse_failure_record(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._notice(f"the failure record {path.name} cannot be used: {error}")
            return None

    def _success_file_exists(self, launch: Launch) -> bool:
        if launch.success.file is None:
            return False
        return Path(placeholders.expand(launch.success.file, self._placeholders(launch))).exists()


def _is_steady(group: _Group) -> bool:
    """Whether the attempt is on its way, and all is known that a standby needs to know."""
    plan = group.launch.plan
    trains = group.reports >= _STEADY or (plan.bootstrap and group.stage == Stage.TRAINING)
    known = not plan.bootstrap or plan.preload is not None or _modules_file(group.launch).exists()
    return trains and known


def _modules_file(launch: Launch) -> Path:
    """Where the bootstrap writes which modules the program has imported."""
    return launch.directory / "rank0.modules.json"


def _drill_records(launch: Launch) -> Path:
    return launch.model_dir / "drills"


def _pending_drills(launch: Launch) -> list[Drill]:
    """The drills of the phase that have not fired yet in this job."""
    records = _drill_records(launch)
    drills = [
        Drill(id=f"{launch.plan.name}-{index}", **fault.model_dump())
        for index, fault in enumerate(launch.plan.faults)
    ]
    return [drill for drill in drills if not (records / drill.id).exists()]
