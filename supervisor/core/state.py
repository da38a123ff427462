"""The state of a job: what it is doing, and the parts that are kept whatever it does.

`liveness`, `recovery`, `stages` and `goodput` are volatile. All else is durable: a replay of the
journal restores it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from supervisor.core.budget import Budget
from supervisor.core.doing import (
    Alive,
    BackingOff,
    Doing,
    Drained,
    Ended,
    Failed,
    Hang,
    Idle,
    Killing,
    Lingering,
    MakesWay,
    New,
    NotFinite,
    Probing,
    Running,
    Succeeded,
    Waiting,
    cause_of,
    workers_of,
)
from supervisor.core.doing import Status as Status
from supervisor.core.events import StopSource, Straggler
from supervisor.core.failure_rate import FailureRate
from supervisor.core.guesses import Guesses
from supervisor.core.ladder import Ladder
from supervisor.core.livelock import Goodput, Livelock
from supervisor.core.liveness import Liveness, Silence
from supervisor.core.quarantine import Quarantine
from supervisor.core.recovery import Recovery
from supervisor.core.remediation import Remediation
from supervisor.core.stage_times import StageTimes
from supervisor.diagnosis.failure import Failure, Survivor, WorkerExit
from supervisor.protocol.loss_spikes import LossSpike

_ENDS_GROUP = Hang | MakesWay | Idle | NotFinite
"""The causes for which the supervisor ends a group that could go on."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Somebody asked the job to stop, first at `at`."""

    source: StopSource
    at: float
    highest: int | None = None
    """The newest committed step when the workers were asked to stop, or were to be."""
    begins: float | None = None
    """When the workers will be asked to save and exit; None: they were asked already, or will be as
    soon as they run."""
    notice: float | None = None
    """How many seconds the machine stays after `at`, where the source of a preemption knew it."""


@dataclass(frozen=True, slots=True)
class Group:
    """The live worker group, for readers outside the core: one shape for all variants."""

    attempt: int
    world_size: int | None
    """How many workers there are; None before `WorkersStarted`."""
    exits: tuple[WorkerExit, ...]
    survivors: tuple[Survivor, ...]
    live_pids: tuple[int, ...]
    """The workers whose exit is not known."""
    deadline: float | None
    """When the group is killed, or killed again; None: it is not ending."""
    killing: bool
    seen: int
    """The number of exits in the latest observation since the kill was decided; 0: none came."""
    abandoned: bool
    lingers: bool
    hang: Hang | None
    makes_way: bool
    saved: int | None
    """The newest committed step when the group was asked to stop, or was found hanging."""


@dataclass(frozen=True, slots=True)
class JobState:
    """Where a job stands. A new job is `JobState(job="...")`; see `machine.step`."""

    job: str = ""
    doing: Doing = field(default_factory=New)
    attempt: int = 0
    """The number of the latest attempt; it only grows, whatever the cause."""
    newest: int | None = None
    """The newest committed step of the phase that was there when somebody looked last. It falls
    where checkpoints are removed; `budget.highest` does not."""
    phase: int = 0
    directory: str | None = None
    """The phase's directory; None until it has begun."""
    checkpoints: str | None = None
    """The directory in which the phase's checkpoints were found; None: the config names it, or none
    was found yet."""
    checkpoint_kinds: tuple[str, ...] = ()
    """The kinds of names that count there: see `CheckpointsFound`."""
    num_damaged: int = 0
    """How many damaged checkpoints the job has moved aside."""
    known_checkpoints: tuple[str | None, ...] = ()
    """`checkpoints` of each phase, by its number, when the job left it: see `checkpoints_of`."""
    initialises_again: bool = False
    """Whether the last attempt hung in a first, short initialisation: the next one has more
    time."""
    budget: Budget = field(default_factory=Budget)
    remediation: Remediation = field(default_factory=Remediation)
    guesses: Guesses = field(default_factory=Guesses)
    liveness: Liveness = field(default_factory=Liveness)
    recovery: Recovery = field(default_factory=Recovery)
    stages: StageTimes = field(default_factory=StageTimes)
    livelock: Livelock = field(default_factory=Livelock)
    goodput: Goodput = field(default_factory=Goodput)
    ladder: Ladder = field(default_factory=Ladder)
    quarantine: Quarantine = field(default_factory=Quarantine)
    failure_rate: FailureRate = field(default_factory=FailureRate)
    looks: int = 0
    """How many probes were asked for: the number of the latest `ProbeDevices`."""
    epoch: float = 0.0
    """The Unix time at which the clock of the last supervisor showed zero."""
    drain: Drain | None = None
    announced: str = ""
    """The text of the last maintenance announcement; empty: none."""
    longest_save: float | None = None
    """Seconds from start to commit of the longest save of this phase; None: none was measured."""
    last_failure: Failure | None = None
    stragglers: tuple[Straggler, ...] = ()
    """The ranks of the latest attempt that keep the others waiting."""
    loss_spikes: tuple[LossSpike, ...] = ()
    """The newest losses of the phase that stand out, by step; one that was run again is
    there once."""

    @property
    def status(self) -> Status:
        """What the supervisor is doing, in one word."""
        return self.doing.status

    @property
    def exit_code(self) -> int | None:
        """The exit code that the job ended with; None: it has not ended."""
        return int(self.doing.exit_code) if isinstance(self.doing, Ended) else None

    @property
    def backoff(self) -> BackingOff | None:
        """The backoff before the next attempt; None while the job does something else."""
        return self.doing if isinstance(self.doing, BackingOff) else None

    @property
    def capacity_check(self) -> Probing | Waiting | None:
        """The search for devices for the next attempt; None while the job does something else."""
        return self.doing if isinstance(self.doing, Probing | Waiting) else None

    @property
    def group(self) -> Group | None:
        """The live worker group, for readers outside the core; None: there is none."""
        doing = self.doing
        if not isinstance(doing, Alive):
            return None
        was = doing.was if isinstance(doing, Killing) else doing
        workers, cause = workers_of(doing), cause_of(doing)
        asked_at = cause.saved if isinstance(cause, _ENDS_GROUP) else None
        return Group(
            self.attempt,
            world_size=workers.world_size if workers is not None else None,
            exits=workers.exits if workers is not None else (),
            survivors=workers.survivors if workers is not None else (),
            live_pids=workers.live_pids if workers is not None else (),
            deadline=self.due,
            killing=isinstance(doing, Killing),
            seen=doing.seen if isinstance(doing, Killing) else 0,
            abandoned=isinstance(doing, Killing) and doing.abandoned,
            lingers=isinstance(was, Lingering),
            hang=cause if isinstance(cause, Hang) else None,
            makes_way=isinstance(cause, MakesWay),
            saved=self.drain.highest if self.drain is not None else asked_at,
        )

    @property
    def deadline(self) -> float | None:
        """When `DeadlineReached` is due if no other event comes; None: never."""
        if not isinstance(self.doing, Running):
            return self.due
        begins = self.drain.begins if self.drain is not None else None
        times = (self.liveness.expires, self.ladder.look_at, begins)
        return min((time for time in times if time is not None), default=None)

    @property
    def due(self) -> float | None:
        """The next deadline, without the timers of a healthy group; None: there is none."""
        match self.doing:
            case New() | Running() | Succeeded() | Failed() | Drained():
                return None
            case BackingOff(until=until):
                return until
            case other:
                return other.deadline

    @property
    def drains(self) -> bool:
        """Whether the job is stopping. False while an announced preemption leaves time to train."""
        return self.drain is not None and self.drain.begins is None

    @property
    def ends_group(self) -> bool:
        """Whether the supervisor ends the group: for a hang, a larger rung, hosts that go,
        idleness, losses that are not finite, or a request to stop or to restart."""
        cause = cause_of(self.doing) if isinstance(self.doing, Alive) else None
        return self.drains or isinstance(cause, _ENDS_GROUP)

    def begins_anew(self, *, once: bool) -> bool:
        """Whether running the command again runs a succeeded job anew; `once` as in
        `SupervisorStarted`."""
        return isinstance(self.doing, Succeeded) and not self.doing.proven and not once

    def has_completed(self, phase: int, *, once: bool) -> bool:
        """Whether `phase` is complete and is not run again; `once` as in `SupervisorStarted`."""
        is_last = phase == self.phase and isinstance(self.doing, Succeeded)
        return not self.begins_anew(once=once) and (phase < self.phase or is_last)

    def checkpoints_of(self, phase: int) -> str | None:
        """Returns the directory in which the checkpoints of a phase were found; None: none was."""
        if phase == self.phase:
            return self.checkpoints
        return self.known_checkpoints[phase] if phase < len(self.known_checkpoints) else None

    def committed(
        self,
        step: int | None,
        at: float,
        *,
        new: bool = False,
        epochs: tuple[int, ...] = (),
    ) -> JobState:
        """Returns the state after a checkpoint of `step` was seen committed at the time `at`. For
        `new` and `epochs` see `CheckpointCommitted`."""
        before = self.budget
        if step is None or before.is_base(step, epochs or None):
            return self
        budget = before.committed(step, new=new, attempt=self.attempt, epochs=epochs)
        is_below = self.newest is not None and step <= self.newest
        if budget == before and (is_below or before.is_earlier(step, epochs)):
            return self
        state = replace(self, newest=step, budget=budget)
        is_same = budget.highest == before.highest and not before.epochs
        if budget == before or is_same or budget.begun_in == self.attempt:
            return state
        return replace(
            state,
            livelock=self.livelock.committed(),
            goodput=self.goodput.committed(at),
            failure_rate=self.failure_rate.ran(at),
        )

    def found(self, step: int | None, at: float) -> JobState:
        """After a look for checkpoints while no worker lives: `step` is the newest one; None: there
        is none."""
        step = self.budget.own(step)
        return replace(replace(self, newest=None).committed(step, at), newest=step)

    def saved_since(self, step: int, last: int | None) -> bool:
        """Whether the newest committed step is `step` or a later one, and the program's own: a lone
        one above `last`, the last step that was reported, is a base model's. None: not known."""
        if self.newest is None or self.newest < step:
            return False
        return last is None or self.newest <= last or not self.budget.is_lone

    def silence(self, now: float) -> Silence | None:
        """Returns the silence of a running group that is too long at the time `now`, else None."""
        if not isinstance(self.doing, Running):
            return None
        return self.liveness.silence(self.attempt, now)

    def durable(self) -> JobState:
        """Returns the state that a replay of the journal gives: without the volatile parts."""
        return replace(
            self, liveness=Liveness(), recovery=Recovery(), stages=StageTimes(), goodput=Goodput()
        )
