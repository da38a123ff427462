"""The state of a job, composed of small parts. What is durable in it follows from the journal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from supervisor.core.budget import Budget
from supervisor.core.events import StopSource
from supervisor.core.guesses import Guesses
from supervisor.core.ladder import Ladder
from supervisor.core.livelock import Goodput, Livelock
from supervisor.core.liveness import Liveness, Silence
from supervisor.core.quarantine import Quarantine
from supervisor.core.recovery import Recovery
from supervisor.core.tactics import Tactics
from supervisor.diagnosis.failure import Failure, Survivor, WorkerExit
from supervisor.protocol.messages import Stage


class Status(StrEnum):
    """What the supervisor is doing."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    PROBING = "PROBING"
    WAITING = "WAITING"
    BACKOFF = "BACKOFF"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    DRAINED = "DRAINED"

    @property
    def terminal(self) -> bool:
        """Whether the job has ended, for this run of the command at least."""
        return self in (Status.SUCCEEDED, Status.FAILED, Status.DRAINED)


@dataclass(frozen=True, slots=True)
class Hang:
    """The group was silent for too long, and is being ended for it."""

    stage: Stage
    seconds: float
    asked: bool = False
    """Whether it was asked to stop; before that its stacks are dumped."""


@dataclass(frozen=True, slots=True)
class Group:
    """The worker group of the current attempt, from the decision to start it until it is gone."""

    attempt: int
    world_size: int | None = None
    """Set once the workers run."""
    exits: tuple[WorkerExit, ...] = ()
    deadline: float | None = None
    """When what is left of the group is killed (again)."""
    killing: bool = False
    """`KillWorkers` was decided, and the answer is outstanding."""
    seen: int = 0
    """How many ends were seen since then: `exits` stays what the kill was decided on."""
    abandoned: bool = False
    """The supervisor of this group died; nothing it does is charged."""
    hang: Hang | None = None
    makes_way: bool = False
    """It was asked to stop so that a larger rung can be used: nothing is charged."""
    survivors: tuple[Survivor, ...] = ()
    """What lives of the processes that the workers which have ended had started."""
    lingers: bool = False
    """All workers have ended, and the survivors have the time until the deadline."""
    saved: int | None = None
    """The highest committed step when it was asked to stop, was found hanging, or the job was asked
    to stop before it could be."""

    @property
    def all_ended(self) -> bool:
        """Whether every worker's exit is known."""
        return self.world_size is not None and len(self.exits) >= self.world_size


@dataclass(frozen=True, slots=True)
class Drain:
    """Somebody asked the job to stop, first at `at`."""

    source: StopSource
    at: float
    highest: int | None = None
    """The highest step that was committed by then."""
    begins: float | None = None
    """When the workers are asked to save and exit, if that is later; None: as soon as they run."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting before the next attempt."""

    delay: float
    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class Placing:
    """Finding out what the next attempt can run on, and waiting until that is enough."""

    reason: str
    """Why there is a next attempt."""
    deadline: float
    """When devices are looked at again."""
    short_since: float | None = None
    """Since when there are too few."""
    suspect: Failure | None = None
    """The failure that led here, charged only if everything that it ran on proves to be well."""
    adjustable: tuple[str, ...] = ()
    """What the workers of that failure could adjust."""


@dataclass(frozen=True, slots=True)
class JobState:
    """Where a job stands. A new job is `JobState(job="...")`; see `machine.step`."""

    job: str = ""
    status: Status = Status.STARTING
    attempt: int = 0
    """The number of the latest attempt; it only grows, whatever the cause."""
    phase: int = 0
    directory: str | None = None
    """The phase's directory; None until it has begun."""
    initialises_again: bool = False
    """Whether the last attempt hung in a first, short initialisation: the next has more time."""
    begin_again: float | None = None
    """When `BeginPhase` is decided again, because nothing has answered it."""
    budget: Budget = field(default_factory=Budget)
    tactics: Tactics = field(default_factory=Tactics)
    guesses: Guesses = field(default_factory=Guesses)
    group: Group | None = None
    liveness: Liveness = field(default_factory=Liveness)
    recovery: Recovery = field(default_factory=Recovery)
    livelock: Livelock = field(default_factory=Livelock)
    goodput: Goodput = field(default_factory=Goodput)
    backoff: Backoff | None = None
    ladder: Ladder = field(default_factory=Ladder)
    quarantine: Quarantine = field(default_factory=Quarantine)
    placing: Placing | None = None
    looks: int = 0
    """How often devices were looked at: the number of the latest look."""
    epoch: float = 0.0
    """The Unix time at which the clock of the last supervisor showed zero."""
    drain: Drain | None = None
    announced: str = ""
    """What was last announced to happen to the machine, for people."""
    longest_save: float | None = None
    """Seconds that a save of this phase took at most, from its beginning to its commit."""
    last_failure: Failure | None = None
    exit_code: int | None = None
    reached: int | None = None
    """The success step of the last phase when the job succeeded: a higher one reopens it."""
    proven: bool = True
    """Whether the success of the last phase was more than an exit code: a step, pattern or file."""

    @property
    def deadline(self) -> float | None:
        """When something is to be done although nothing happens; None: never."""
        if self.due is not None:
            return self.due
        times = [self.liveness.expires]
        if self.group is not None:
            times += [self.ladder.look_at, self.drain.begins if self.drain else None]
        return min((time for time in times if time is not None), default=None)

    @property
    def due(self) -> float | None:
        """The next deadline, without the timers of a healthy group."""
        if self.backoff is not None:
            return self.backoff.until
        if self.placing is not None:
            return self.placing.deadline
        if self.group is not None:
            return self.group.deadline
        return self.begin_again

    @property
    def drains(self) -> bool:
        """Whether the job is stopping: not while an announced preemption leaves time to train."""
        return self.drain is not None and self.drain.begins is None

    def begins_anew(self, *, once: bool) -> bool:
        """Whether running the command again runs the job again although it succeeded."""
        return self.status is Status.SUCCEEDED and not self.proven and not once

    def committed(self, step: int | None, at: float) -> JobState:
        """After a checkpoint of `step` was seen committed, at the time `at`."""
        budget = self.budget.committed(step)
        if budget == self.budget:
            return self
        livelock, goodput = self.livelock.committed(), self.goodput.committed(at)
        return replace(self, budget=budget, livelock=livelock, goodput=goodput)

    @property
    def ends_group(self) -> bool:
        """Whether the running group is being stopped, for whatever reason."""
        group = self.group
        return self.drains or (group is not None and (group.hang is not None or group.makes_way))

    def silence(self, now: float) -> Silence | None:
        """That the running group has been silent for too long, if so."""
        if self.group is None or self.group.deadline is not None:
            return None
        return self.liveness.silence(self.group.attempt, now)

    def durable(self) -> JobState:
        """The part of this state that replaying the journal gives."""
        return replace(self, liveness=Liveness(), recovery=Recovery(), goodput=Goodput())
