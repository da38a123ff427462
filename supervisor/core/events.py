"""Events: facts in the past tense, each with its time (`at`, seconds on the supervisor's clock).

An event of a worker group carries the number of its attempt, and the answer to a look at devices
that of the look: the core drops those of any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from supervisor.core.liveness import Silence
from supervisor.core.policy import RestartPolicy
from supervisor.diagnosis.failure import Failure, Survivor, WorkerExit
from supervisor.host.notice import Notice
from supervisor.protocol.messages import Message


class StopSource(StrEnum):
    """Who asked the job to stop."""

    SIGTERM = "SIGTERM"
    """The system: service manager, container runtime, the end of the machine."""
    SIGHUP = "SIGHUP"
    """The terminal was closed, or the connection to it was lost."""
    PERSON = "a person"
    """Ctrl-C."""
    PREEMPTION = "an announced preemption"
    """Whoever owns the machine will take it away soon."""


@dataclass(frozen=True, slots=True)
class SupervisorStarted:
    """A supervisor owns the job from here on, under `policy`; the first event of every run."""

    at: float
    job: str
    policy: RestartPolicy
    committed: int | None
    """The newest committed step of the phase that the job is in."""
    epoch: float = 0.0
    """The Unix time at which this supervisor's clock shows zero."""
    once: bool = True
    """Whether a success by the exit code alone is final too, as it was for older supervisors."""
    attempt: int = 0
    """The highest number of an attempt that has left a folder; 0: none has, or nobody looked."""


@dataclass(frozen=True, slots=True)
class PhaseBegun:
    """The phase has its directory; `committed` is the newest step that was already there."""

    at: float
    phase: int
    directory: str
    committed: int | None


@dataclass(frozen=True, slots=True)
class WorkersStarted:
    """Every worker of the attempt runs."""

    at: float
    attempt: int
    pids: tuple[int, ...]
    began: float | None = None
    """When their start was begun."""
    standby: bool = False
    """Whether they had been waiting with their imports done."""


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The attempt's workers could not be started; what was started is gone."""

    at: float
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker said something on its progress pipe. Volatile."""

    at: float
    attempt: int
    rank: int
    message: Message


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something that a person should know and that decides nothing. Volatile.

    `routine`: it is as it should be.
    """

    at: float
    text: Notice
    routine: bool = False


@dataclass(frozen=True, slots=True)
class MaintenanceAnnounced:
    """Something will happen to this machine that the job may stay for, as far as is known."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class SilenceExcused:
    """The workers may be silent for `seconds` longer than usual: they, or we, do not run, or what
    they said is not read yet. Volatile.

    `why` is for people; empty: it is not told.
    """

    at: float
    seconds: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """A checkpoint of the phase was seen committed."""

    at: float
    phase: int
    step: int


@dataclass(frozen=True, slots=True)
class SaveMeasured:
    """A worker of the attempt saved, in so many seconds from its beginning to its commit."""

    at: float
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkersObserved:
    """A full look at the attempt's workers, when one of them ends and periodically."""

    at: float
    attempt: int
    pids: tuple[int, ...]
    exits: tuple[WorkerExit, ...]
    survivors: tuple[Survivor, ...] = ()
    """What lives of the processes that the workers which have ended had started."""


@dataclass(frozen=True, slots=True)
class WorkersGone:
    """Every process of the attempt is confirmed gone, at the time `at`; its end is judged (None:
    success)."""

    at: float
    attempt: int
    failure: Failure | None
    resumed_from: int | None
    """The step whose state the attempt restored; None: it started afresh, or did not get there."""
    step: int | None
    """The last completed step that was reported."""
    committed: int | None
    """The newest committed step, looked for after the group was gone."""
    adjustable: tuple[str, ...] = ()
    """What the workers said they could adjust (`protocol.adjustments`)."""
    from_snapshot: bool = False
    """Whether `resumed_from` is of a snapshot in memory: then it may be above all that was ever
    committed, and is no progress."""
    starting_step: int | None = None
    """The step that the attempt began at, also where it did not say so; None: nothing tells."""
    doubt: str | None = None
    """The exception that the output ends in, although the attempt succeeded."""


@dataclass(frozen=True, slots=True)
class BadUnit:
    """A unit that a probe found not to be usable, and why."""

    unit: str
    reason: str
    found: bool = True
    """Whether it is there at all."""


@dataclass(frozen=True, slots=True)
class DevicesProbed:
    """The devices were looked at; `number` is that of the look."""

    at: float
    number: int
    healthy: tuple[str, ...]
    bad: tuple[BadUnit, ...]
    problem: str | None = None
    """Why nothing could be found out, where that is so."""


@dataclass(frozen=True, slots=True)
class RungCompileFailed:
    """The phase's program cannot be compiled for that rung, and never will be as it is."""

    at: float
    phase: int
    num_devices: int
    reason: str


@dataclass(frozen=True, slots=True)
class QuarantineCleared:
    """A person wants units used again; none named: all of them."""

    at: float
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody asked the job to stop."""

    at: float
    source: StopSource
    detail: str = ""
    """What was said, and by whom, where that is more than the source."""
    at_once: bool = False
    """Whether whoever asks is as impatient as one who asks for the second time."""


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """The time of `JobState.deadline` has come.

    The silence of the workers is part of the fact: what they said is not in the journal.
    """

    at: float
    silence: Silence | None = None


Event = (
    SupervisorStarted
    | PhaseBegun
    | WorkersStarted
    | LaunchFailed
    | WorkerReported
    | Noticed
    | MaintenanceAnnounced
    | SilenceExcused
    | CheckpointCommitted
    | SaveMeasured
    | WorkersObserved
    | WorkersGone
    | DevicesProbed
    | RungCompileFailed
    | QuarantineCleared
    | StopRequested
    | DeadlineReached
)

VOLATILE = (WorkerReported, Noticed, SilenceExcused)
"""Never journalled unless something is decided: what else follows from them is gone with the worker
group anyway."""
