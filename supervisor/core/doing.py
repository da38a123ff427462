"""What the supervisor is doing with the job: one of these variants, each with its own fields.

    New -> Beginning -> Launching -> Running -> Stopping -> (Lingering ->) Killing
        -> (BackingOff -> Probing -> Waiting ->) Launching ... -> Succeeded, Failed, Drained

`docs/reference/states.md`, which is generated, has every transition. Each variant names its
`status` and has a `kind` that identifies it in JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal

from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.failure import Failure, Survivor, Verdict, WorkerExit
from supervisor.protocol.messages import Stage


class Status(StrEnum):
    """What the supervisor is doing, in one word."""

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
        """Whether the job has ended; running the command again may continue it."""
        return self in (Status.SUCCEEDED, Status.FAILED, Status.DRAINED)


# --- before the first attempt of a phase ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class New:
    """No supervisor has started the job yet."""

    status: ClassVar[Status] = Status.STARTING
    kind: Literal["new"] = field(default="new", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The phase waits for its directory."""

    deadline: float
    """When `BeginPhase` is decided again if nothing has answered it."""

    status: ClassVar[Status] = Status.STARTING
    kind: Literal["beginning"] = field(default="beginning", kw_only=True, repr=False)


# --- a worker group lives ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of an attempt, as last observed."""

    world_size: int
    exits: tuple[WorkerExit, ...] = ()
    survivors: tuple[Survivor, ...] = ()
    """Live processes that were started by workers which have ended."""
    pids: tuple[int, ...] = ()
    """The worker of each rank. Older journals, which lack this field, mean that none is known."""

    @property
    def live_pids(self) -> tuple[int, ...]:
        """The workers whose exit is not known."""
        ended = {each.rank for each in self.exits}
        return tuple(pid for rank, pid in enumerate(self.pids) if rank not in ended)

    @property
    def all_ended(self) -> bool:
        """Whether every worker's exit is known."""
        return len(self.exits) >= self.world_size


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker ended, though the group was not asked to stop."""

    kind: Literal["worker_ended"] = field(default="worker_ended", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody asked the job to stop: see `JobState.drain`."""

    kind: Literal["asked"] = field(default="asked", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class MakesWay:
    """The group stops so that a larger rung can be used, because hosts of it are about to go, or
    because a person wants a fresh attempt. Nothing is charged."""

    saved: int | None
    """The newest committed step when the group was asked to stop; None: there was none."""
    leaving: str = ""
    """Which hosts go, and why; empty: none go, as in all older journals."""
    restarts: str = ""
    """Who asked for a fresh attempt; empty: nobody. Older journals lack this field."""

    kind: Literal["makes_way"] = field(default="makes_way", kw_only=True, repr=False)

    def explains(self, failure: Failure | None) -> bool:
        """Whether the request explains this end. It does not explain a FATAL failure."""
        return failure is None or failure.verdict is not Verdict.FATAL


@dataclass(frozen=True, slots=True)
class Hang:
    """The group was silent for too long."""

    stage: Stage
    seconds: float
    saved: int | None
    """The newest committed step when the hang was found; None: there was none."""
    asked: bool = False
    """Whether the group was asked to stop already; its stacks are dumped before that."""

    kind: Literal["hang"] = field(default="hang", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Idle:
    """The success step is committed, and the group neither exits nor does anything."""

    seconds: float
    """How long nothing was seen of it."""
    saved: int | None
    """The newest committed step when it was asked to stop."""

    kind: Literal["idle"] = field(default="idle", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The losses became NaN or Inf, and stay so."""

    since: int
    """The first step with such a loss."""
    times: int
    """How many such losses were reported in a row."""
    finite: int | None
    """The last step with a finite loss; None: not known."""
    before: int | None
    """The newest step that was committed before `since`; None: none is known."""
    saved: int | None
    """The newest committed step when the group was killed; None: there was none."""

    kind: Literal["not_finite"] = field(default="not_finite", kw_only=True, repr=False)


Cause = WorkerEnded | Asked | MakesWay | Hang | Idle | NotFinite
"""Why a group is ending."""


@dataclass(frozen=True, slots=True)
class Launching:
    """The workers are being started."""

    deadline: float
    """When the group is killed if no `WorkersStarted` has come."""

    status: ClassVar[Status] = Status.STARTING
    kind: Literal["launching"] = field(default="launching", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Running:
    """The workers run, and the group is not ending. Some workers may have ended with success."""

    workers: Workers

    status: ClassVar[Status] = Status.RUNNING
    kind: Literal["running"] = field(default="running", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Stopping:
    """Some workers still run, and have until the deadline to end."""

    workers: Workers
    cause: Cause
    deadline: float
    """When the group is killed; for a `Hang` that is not `asked` yet: when it gets SIGTERM."""

    status: ClassVar[Status] = Status.STOPPING
    kind: Literal["stopping"] = field(default="stopping", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Lingering:
    """All workers have ended, and their survivors have until the deadline to end."""

    workers: Workers
    cause: Cause
    deadline: float

    status: ClassVar[Status] = Status.STOPPING
    kind: Literal["lingering"] = field(default="lingering", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Killing:
    """`KillWorkers` was decided, and its answer `WorkersGone` is outstanding."""

    was: Launching | Running | Stopping | Lingering
    """What the group did when the kill was decided."""
    deadline: float
    """When the group is killed again."""
    seen: int = 0
    """The number of exits in the latest observation since the kill was decided; 0: none came."""
    abandoned: bool = False
    """Whether the supervisor that started this group died: then its end is not charged."""

    status: ClassVar[Status] = Status.STOPPING
    kind: Literal["killing"] = field(default="killing", kw_only=True, repr=False)


Alive = Launching | Running | Stopping | Lingering | Killing
"""There is a worker group: from the decision to start it until it is confirmed gone."""


def workers_of(group: Alive) -> Workers | None:
    """Returns the workers of a group; None before `WorkersStarted`."""
    was = group.was if isinstance(group, Killing) else group
    return None if isinstance(was, Launching) else was.workers


def cause_of(group: Alive) -> Cause | None:
    """Returns why the group is ending; None if it runs, or is killed for no cause of its own."""
    was = group.was if isinstance(group, Killing) else group
    return was.cause if isinstance(was, Stopping | Lingering) else None


# --- between two attempts ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackingOff:
    """Waiting before the next attempt."""

    delay: float
    until: float
    reason: str
    """Why there is a next attempt."""

    status: ClassVar[Status] = Status.BACKOFF
    kind: Literal["backing_off"] = field(default="backing_off", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A failure that points at the devices. It is charged only if a probe finds them healthy."""

    failure: Failure
    adjustable: tuple[str, ...] = ()
    """What the workers of the failed attempt declared adjustable."""


@dataclass(frozen=True, slots=True)
class Probing:
    """Finding out which devices the next attempt can run on."""

    reason: str
    """Why there is a next attempt."""
    deadline: float
    """When the devices are probed again if no answer has come."""
    short_since: float | None = None
    """Since when there have been too few devices; None: not known."""
    suspicion: Suspicion | None = None
    """The failure that led here, if it points at the devices."""
    missing: tuple[str, ...] = ()
    """See `Waiting`."""

    status: ClassVar[Status] = Status.PROBING
    kind: Literal["probing"] = field(default="probing", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting for devices: there are too few for the next attempt."""

    reason: str
    """Why there is a next attempt."""
    deadline: float
    """When the devices are probed again."""
    short_since: float
    """Since when there have been too few devices."""
    missing: tuple[str, ...] = ()
    """The units that the last probe did not see. People were told of them: they are told again only
    of others."""

    status: ClassVar[Status] = Status.WAITING
    kind: Literal["waiting"] = field(default="waiting", kw_only=True, repr=False)


# --- the end -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Every phase succeeded."""

    reached: int | None
    """The success step of the last phase, if it has one: a higher one reopens the job."""
    proven: bool
    """Whether the last phase's success was more than an exit code: a step, pattern or file."""

    exit_code: ClassVar[ExitCode] = ExitCode.SUCCEEDED
    status: ClassVar[Status] = Status.SUCCEEDED
    kind: Literal["succeeded"] = field(default="succeeded", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The job failed, for good or until the command is run again."""

    exit_code: ExitCode

    status: ClassVar[Status] = Status.FAILED
    kind: Literal["failed"] = field(default="failed", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Drained:
    """Somebody asked the job to stop, and it did."""

    exit_code: ExitCode

    status: ClassVar[Status] = Status.DRAINED
    kind: Literal["drained"] = field(default="drained", kw_only=True, repr=False)


Ended = Succeeded | Failed | Drained

Doing = New | Beginning | Alive | BackingOff | Probing | Waiting | Ended
