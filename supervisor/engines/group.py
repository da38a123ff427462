"""The live worker group: its workers, the pipes to them, and what they have reported so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from signal import SIGKILL

from supervisor.adapters.processes.output import OutputReader
from supervisor.adapters.processes.progress import ProgressPipe
from supervisor.config.usual_names import final_name
from supervisor.core.idleness import Activity, Idleness
from supervisor.core.recovery import began_at
from supervisor.core.settling import Settling
from supervisor.diagnosis.failure import Survivor, WorkerExit
from supervisor.engines.handles import Finder, OomKills, Output, Process, Watch
from supervisor.engines.host_port import Host
from supervisor.engines.launch import Launch, Start
from supervisor.engines.python_program import has_bootstrap
from supervisor.protocol.committed import step_of
from supervisor.protocol.fault_injection import InjectedFault
from supervisor.protocol.messages import (
    AdjustableMessage,
    DevicesMessage,
    Message,
    NoticeMessage,
    RestoredMessage,
    SavedMessage,
    SigtermKeptMessage,
    SigtermMessage,
    StacksMessage,
    Stage,
    StageMessage,
    StepMessage,
    StepsDroppedMessage,
    WroteMessage,
)
from supervisor.protocol.standby import Mode

_STEADY = 3
"""After so many step reports the pipe of a worker is read less often."""
_MAX_HELPER = 0.5
"""CPU seconds that a process uses at most that does no work: importing JAX takes more."""
_MAX_COMMITS = 16
"""How many of its commits are remembered."""


@dataclass(slots=True)
class Member:
    """One worker of the group, its output and its progress pipe."""

    rank: int
    start: Start
    machine: Host
    process: Process
    standby: Mode | None
    """The kind of standby that it was; None: it was started cold."""
    output: Output
    pipe: ProgressPipe
    exit: WorkerExit | None = None
    dumps_stacks: bool = False
    told_to_stop: bool = False
    """Whether it got a SIGTERM that was not ours, before the supervisor asked the group to stop."""
    heard_no_sigterm: bool = False
    """Whether it ended without having been told of any SIGTERM: jax kept each to itself."""
    stage: Stage | None = None
    step: int | None = None
    first_step: int | None = None
    """The first completed step that it reported."""
    every: int | None = None
    """By how much the steps rise that its output tells; None: not known."""
    step_recognised: bool = False
    """Whether these were only recognised in its output."""
    stepped_at: float = 0.0
    """When its last `step` was heard of."""
    saved: int | None = None
    """The last step that it reported to have saved."""
    reports: int = 0
    """How many step reports it has sent."""
    messages: int = 0
    """How many messages it has sent."""
    has_spoken: bool = True
    """Whether it reported anything since the last look."""
    read_at: float | None = None
    """When the last read of its pipe began; None: it was not read yet."""
    silence: tuple[float, float] = (0.0, 0.0)
    """The time of the first look after its last report, and its CPU seconds by then."""

    @property
    def is_on_its_way(self) -> bool:
        """Whether it has reported enough steps to be read less often."""
        return self.reports >= _STEADY

    def note_message(self, message: Message, at: float) -> None:
        """Take note of a report, or of what its output showed, at the time `at`."""
        match message:
            case StepMessage(recognised=True):
                self.stepped_at = at
                if self.first_step is None:
                    self.first_step = message.earliest
                self.step, self.step_recognised = message.step, True
                self.every = message.every
                return
            case StepsDroppedMessage():
                self._forget_recognised()
                return
        self.has_spoken = True
        self.messages += 1
        match message:
            case StageMessage(stage, step):
                self.stage = stage
                if step is not None:
                    self._forget_recognised()
                    self.step, self.stepped_at = step, at
            case StepMessage(step):
                self._forget_recognised()
                self.stepped_at = at
                if self.first_step is None:
                    self.first_step = message.earliest
                self.step = step
                self.reports += 1
            case SavedMessage(int() as saved):
                self.saved = saved
            case StacksMessage():
                self.dumps_stacks = True

    def _forget_recognised(self) -> None:
        if self.step_recognised:
            self.step = self.first_step = self.every = None
            self.step_recognised = False

    def unheard(self, now: float) -> float:
        """Returns for how many seconds its reports waited unread; called when its pipe is read at
        `now`."""
        since, self.read_at = self.read_at, now
        return now - since if since is not None and self.pipe.is_behind else 0.0

    def look(self, now: float) -> None:
        """Note its CPU time, if it has reported anything since the last look."""
        if self.has_spoken:
            self.has_spoken = False
            self.silence = now, self.machine.cpu_seconds(self.process.pid)

    def cpu_time_in_silence(self, now: float) -> tuple[float, float]:
        """Returns the CPU seconds since its last report, and the seconds since then. For people
        only: nothing is decided by it."""
        since, before = self.silence
        used = max(0.0, self.machine.cpu_seconds(self.process.pid) - before)
        return used, now - since

    def activity(self) -> Activity:
        """Returns what it has done so far."""
        cpu = self.machine.cpu_seconds(self.process.pid)
        return Activity(self.messages, self.output.reader.received, cpu)

    def close(self, drain_output: float) -> bool:
        """Close everything; False: a process still holds the output after `drain_output`
        seconds."""
        self.pipe.close()
        self.process.close()
        return self.output.finish(drain_output)


@dataclass(slots=True)
class WorkerGroup:
    """The workers of an attempt, in the order of their ranks."""

    launch: Launch
    machine: Host
    watcher: Watch
    oom: OomKills
    guards_lost: Callable[[], int]
    """Returns how many guard processes have died since the group was started."""
    faults: list[InjectedFault]
    """The injected faults that had not fired when the attempt started."""
    settling: Settling
    finder: Finder | None = None
    """The `watcher`, if it also finds the checkpoint directory; None: that is known for certain."""
    committed: int | None = None
    """The newest committed step when it started."""
    commits: tuple[int, ...] = ()
    """The last steps that were seen committed since. Set in any thread."""
    first_seen: dict[int, float] = field(default_factory=dict)
    """When each step was first seen committed: the one that was there as the group started, then
    each of `commits`. A program may save the same one again."""
    idleness: Idleness = field(default_factory=Idleness)
    looks_after_failure: int = 0
    """How often a lone worker was seen alive after it had failed."""
    workers: list[Member] = field(default_factory=list)
    exits: list[WorkerExit] = field(default_factory=list)
    """The exits so far, in the order in which they were seen."""
    num_ended_before_kill: int | None = None
    """How many workers had ended when the supervisor killed the others; None: it has not."""
    lost_guard: bool = False
    """Whether a guard process had died, and workers with it, when the group was killed. A guard
    that is killed because it does not answer does not count: that is later than the kill."""
    writes_steps: bool = False
    """Whether a worker itself, not what it has started, was seen to write what may be a step."""
    late: tuple[Survivor, ...] = ()
    """The survivors of successful workers that still ran when the group was killed."""
    late_are_helpers: bool = False
    """Whether these are no part of the work, as far as is known."""
    asked_to_stop: bool = False
    jax_took_sigterm: bool = False
    """Whether jax has logged that it keeps our SIGTERM to itself, as it does once distributed."""
    is_closed: bool = False
    """Whether the group is over: later messages are dropped."""
    has_compiled: bool = False
    """Whether it has compiled anything since its compilations were last taken over."""
    has_told_start: bool = False
    """Whether it reported what it resumed from."""
    resumed_from: int | None = None
    from_snapshot: bool = False
    adjustable: tuple[str, ...] = ()
    platform: str | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of all workers, also of those that have ended."""
        return tuple(worker.process.pid for worker in self.workers)

    @property
    def outputs(self) -> tuple[OutputReader, ...]:
        """The readers of the workers' output."""
        return tuple(worker.output.reader for worker in self.workers)

    def member(self, rank: int) -> Member:
        """Returns the worker of this rank."""
        return self.workers[self.launch.ranks.index(rank)]

    @property
    def speaker(self) -> Member:
        """The live worker of the lowest rank. Only its reports are passed on, because all workers
        report the same."""
        return next((each for each in self.workers if each.exit is None), self.workers[0])

    @property
    def step(self) -> int | None:
        """The last completed step that was reported; else the last one that the output showed."""
        if self.reported_step is not None:
            return self.reported_step
        return max((w.step for w in self.workers if w.step is not None), default=None)

    @property
    def reported_step(self) -> int | None:
        """The last completed step that was reported, or found by the config's pattern."""
        steps = (w.step for w in self.workers if not w.step_recognised)
        return max((step for step in steps if step is not None), default=None)

    @property
    def stepped_at(self) -> float | None:
        """When `step` was heard of; None: no step was."""
        times = (w.stepped_at for w in self.workers if w.step is not None and w.step == self.step)
        return max(times, default=None)

    @property
    def saved(self) -> int | None:
        """The highest step that a worker reported to have saved; None: none did."""
        return max((w.saved for w in self.workers if w.saved is not None), default=None)

    @property
    def every_step(self) -> bool:
        """Whether the output told every completed step."""
        told = [output for output in self.outputs if output.step_seen]
        return bool(told) and all(output.tells_every_step for output in told)

    def has_recovered(self, at: float) -> bool:
        """Whether the attempt has recovered by the time `at`, so that preparations may begin."""
        return self.settling.is_over(
            at, has_stepped=self.speaker.reports > 0, has_committed=self.watcher.has_new_checkpoint
        )

    @property
    def starting_step(self) -> int | None:
        """The step that the attempt began at; None: not known.

        It is the reported one, 0 for a fresh start. Else see `began_at`.
        """
        told = [(w.first_step, w.every) for w in self.workers if w.first_step is not None]
        if self.has_told_start:
            return self.resumed_from or 0
        if not told:
            return None
        first, every = min(told, key=lambda each: each[0])
        return began_at(first, self.committed, every)

    @property
    def newest(self) -> int | None:
        """The newest committed step, as far as it was seen; None: there is none."""
        return self.commits[-1] if self.commits else self.committed

    def note_commit(self, step: int, at: float) -> None:
        """Take note of a commit at the time `at`. Safe in any thread."""
        self.commits = (*self.commits[1 - _MAX_COMMITS :], step)
        self.first_seen.setdefault(step, at)

    def note_late(self, survivors: Iterable[Survivor]) -> None:
        """Take note of the `survivors` of successful workers that still run and are to be killed.

        They are helpers if they have done next to nothing since they began, and a worker itself
        saves steps.
        """
        self.late = tuple(each for each in survivors if self.machine.lives(each.pid))
        used = (self.machine.cpu_seconds(each.pid) for each in self.late)
        self.late_are_helpers = self.writes_steps and all(each < _MAX_HELPER for each in used)

    def look_for_idleness(self, at: float) -> float:
        """Returns for how many seconds all live workers have done nothing."""
        live = tuple(worker.activity() for worker in self.workers if worker.exit is None)
        self.idleness = self.idleness.looked(at, live)
        return self.idleness.seconds

    def has_ended(self, worker: Member) -> bool:
        """Whether `worker` has ended; if so, its exit is added to `exits`."""
        if worker.exit is None and (ended := worker.process.poll(worker.rank)) is not None:
            worker.exit = replace(ended, told_to_stop=worker.told_to_stop)
            self.exits.append(worker.exit)
        return worker.exit is not None

    def has_left_failure_record(self, worker: Member) -> bool:
        """Whether `worker` has left a failure record and still lives."""
        record = self.launch.file(worker.rank, "failure.json")
        return worker.exit is None and self.machine.exists(record, self.launch.model_dir)

    def all_have_ended(self) -> bool:
        """Whether all workers have ended."""
        ended = [self.has_ended(worker) for worker in self.workers]
        return all(ended)

    def kill(self) -> None:
        """Send SIGKILL to the live workers. Their children are killed later, by the guard.

        Workers that live until now did not end by themselves, so `num_ended_before_kill` is noted
        here.
        """
        if self.num_ended_before_kill is None:
            self.all_have_ended()
            self.num_ended_before_kill = len(self.exits)
            self.lost_guard = self.guards_lost() > 0
            for worker in self.workers:
                if worker.exit is None:
                    worker.process.signal(SIGKILL)

    def _told_to_stop(self, worker: Member) -> bool:
        """Note that a worker got SIGTERM; returns whether that is news, and not our own SIGTERM."""
        if self.asked_to_stop or worker.told_to_stop:
            return False
        worker.told_to_stop = True
        return True

    def note_taken_sigterm(self) -> bool:
        """Note that jax has logged a SIGTERM; returns whether that is news, and our own SIGTERM."""
        is_news = self.asked_to_stop and not self.jax_took_sigterm
        self.jax_took_sigterm |= is_news
        return is_news

    def note_message(self, worker: Member, message: Message, at: float) -> bool:
        """Take note of a report at the time `at`. Returns True if it is to be passed on to the
        core."""
        if isinstance(message, SigtermMessage | SigtermKeptMessage):
            worker.heard_no_sigterm |= isinstance(message, SigtermKeptMessage)
            return isinstance(message, SigtermMessage) and self._told_to_stop(worker)
        if isinstance(message, WroteMessage):
            self.writes_steps |= _is_own_step(worker, message)
            if self.finder is not None:
                self.finder.note_written(message.path)
            return False
        is_recognised = isinstance(message, StepMessage) and message.recognised
        if is_recognised and self.reported_step is not None:
            return False
        worker.note_message(message, at)
        if worker is not self.speaker:
            return isinstance(message, NoticeMessage)
        match message:
            case StageMessage(stage):
                self.settling = self.settling.entered(stage, at)
                self.has_compiled |= stage in (Stage.COMPILING, Stage.EVALUATING)
            case RestoredMessage(step, snapshot):
                self.has_told_start = True
                self.resumed_from, self.from_snapshot = step, snapshot
            case DevicesMessage(platform):
                self.platform = platform
            case AdjustableMessage(names):
                self.adjustable = names
        return True


def _is_own_step(worker: Member, message: WroteMessage) -> bool:
    """Whether the worker itself writes what may be a step. Without the bootstrap on its command
    line, a process that it has started may have reported it."""
    is_step = step_of(final_name(PurePath(message.path).name)) is not None
    return is_step and has_bootstrap(worker.start.argv)
