"""Events: facts in the past tense, each with its time (`at`, seconds on the supervisor's clock).

An event about a worker group carries its attempt number, and `DevicesProbed` carries the number of
its probe. The core drops an event whose number is not the current one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from supervisor.core.liveness import Silence
from supervisor.core.policy import RestartPolicy
from supervisor.diagnosis.failure import Failure, Survivor, WorkerExit
from supervisor.host.notice import Notice
from supervisor.protocol.loss_spikes import LossSpike
from supervisor.protocol.messages import Message, Stage


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
    """True: a success that only an exit code shows is final. False: the job runs again. Older
    journals, which lack this field, mean True."""
    attempt: int = 0
    """The highest attempt number among the attempt folders on disk; 0: there is none, or it was not
    looked for."""
    version: str = ""
    """The version of supervise, with the fingerprint of the code that decides."""
    changed: bool = False
    """Whether the phase that the job is in computes something else than in the last attempt: how
    that one ended says nothing of it. Older journals lack this field."""
    lease_epoch: int = 0
    """The number of this owner of model_dir, as its lease counts them; 0: there is no lease. Older
    journals lack this field."""


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
    """When their start was begun; None: not known."""
    standby: bool = False
    """Whether they were standbys, which had done their imports already."""


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The attempt's workers could not be started; what was started is gone."""

    at: float
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class LaunchCancelled:
    """The attempt was cancelled before any of its workers was started."""

    at: float
    attempt: int


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker said something on its progress pipe. Volatile."""

    at: float
    attempt: int
    rank: int
    message: Message


@dataclass(frozen=True, slots=True)
class Noticed:
    """A notice for people, which decides nothing. Volatile.

    `routine`: it tells of something normal.
    """

    at: float
    text: Notice
    routine: bool = False


@dataclass(frozen=True, slots=True)
class MaintenanceAnnounced:
    """Maintenance of this machine was announced; as far as is known, the job may stay on it."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class SilenceExcused:
    """The hang watchdog grants the workers `seconds` more. Volatile.

    Posted while the workers or the supervisor did not run, or when output was read late. `why` is
    for people; empty: nothing is told.
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
    new: bool = False
    """Whether a command is known to have committed it in the present attempt. Only such a step may
    take the place of a higher one: see `Budget`. Older journals lack this field."""
    epochs: tuple[int, ...] = ()
    """The numbers of epochs before the step in its name: `epoch_3_step_5` has 3. Older journals
    lack this field."""


@dataclass(frozen=True, slots=True)
class CheckpointsFound:
    """A new step was committed in a directory that the config does not name: it is the phase's
    checkpoint directory from now on."""

    at: float
    phase: int
    directory: str
    """The absolute path."""
    kinds: tuple[str, ...] = ()
    """The kinds of names that count there, such as `ckpt_a_#.pkl`, because others may save there
    too; empty: all names of steps do."""
    is_resumed: bool = False
    """Whether the new step is above one that was there before the attempt. Older journals lack this
    field."""


@dataclass(frozen=True, slots=True)
class CheckpointSetAside:
    """Before the workers of an attempt were started, a damaged checkpoint was moved aside."""

    at: float
    attempt: int
    step: int
    newest: int | None
    """The newest step that is left and not known to be damaged; None: there is none."""
    place: str
    """Where the damaged checkpoint is now."""
    reason: str
    """What is wrong with it."""
    files: tuple[str, ...]
    """The damaged files in it; of many, the first ones by name."""


@dataclass(frozen=True, slots=True)
class WorkersIdle:
    """For `seconds` the workers reported nothing, printed nothing and used next to no CPU time."""

    at: float
    attempt: int
    seconds: float
    stage: Stage | None = None
    """The stage that was reported last; None: none was."""
    trained: bool | None = None
    """See `WorkersGone`; this is about the newest step that was committed so far."""


@dataclass(frozen=True, slots=True)
class NativeStacks:
    """A tool has begun to write the native stacks of workers that hang, or all such tools have
    ended."""

    at: float
    attempt: int
    written: bool
    """Whether they have ended."""


@dataclass(frozen=True, slots=True)
class LossesNotFinite:
    """A worker reported a loss that is NaN or Inf."""

    at: float
    attempt: int
    since: int
    """The step of the first such loss after the last finite one, also of an earlier attempt."""
    times: int
    """How many were reported in this attempt, with no finite one between."""
    finite: int | None
    """The last step of this phase with a finite loss, as far as this supervisor knows; None: there
    was none."""
    before: int | None
    """The newest step that was committed before `since`; None: none is known."""
    last: int | None = None
    """The last step that was reported; None: not known."""


@dataclass(frozen=True, slots=True)
class SaveMeasured:
    """A worker saved a checkpoint; `seconds` passed from the start of the save to its commit."""

    at: float
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkersObserved:
    """The state of all workers of the attempt; posted when one of them ends, and periodically."""

    at: float
    attempt: int
    pids: tuple[int, ...]
    exits: tuple[WorkerExit, ...]
    survivors: tuple[Survivor, ...] = ()
    """Live processes that were started by workers which have ended."""


@dataclass(frozen=True, slots=True)
class WorkersGone:
    """Every process of the attempt was confirmed gone at the time `at`, and its end was judged.

    `failure` is None if the attempt succeeded.
    """

    at: float
    attempt: int
    failure: Failure | None
    resumed_from: int | None
    """The step whose state the attempt restored; None: it started afresh, or did not get there."""
    step: int | None
    """The last completed step that was reported, or that the output showed (`step_recognised`)."""
    committed: int | None
    """The newest committed step, looked for after the group was gone."""
    adjustable: tuple[str, ...] = ()
    """The settings that the workers declared adjustable, by name (`protocol.adjustments`)."""
    from_snapshot: bool = False
    """Whether `resumed_from` is the step of a snapshot in memory. Such a step may be above every
    committed one, and does not count as progress."""
    starting_step: int | None = None
    """The step that the attempt began at, reported or inferred; None: not known."""
    doubt: str | None = None
    """The exception that ends the output of an attempt that succeeded all the same; None: none."""
    exits: tuple[WorkerExit, ...] = ()
    """How the workers ended, in the order in which that was seen; also the ones that were killed.
    Older journals lack this field."""
    step_recognised: bool = False
    """Whether `step` was only recognised in the output. Such a step proves no success."""
    trained: bool | None = None
    """Whether the program has trained as far as `committed`, if that would complete the work (see
    `core.trained`). None: nothing shows it, or it would not."""
    unproven: int | None = None
    """The newest step above `committed` that is complete, but was not seen closed by its writer: it
    does not count, but the program may go on from it. None: there is none."""
    torn: str | None = None
    """The newest step in the directory of checkpoints, by its path, if it is above `committed` and
    not complete; after exit code 0, only if the attempt wrote it. None: there is none."""
    stood_at: str = ""
    """Where the workers stood when they were asked for their stacks, because nothing was heard from
    them; empty: they were not asked, or wrote none."""
    heard_no_sigterm: bool = False
    """Whether every worker ended by itself without having been told of any SIGTERM: then its exit
    code says as much as if none had been sent."""


@dataclass(frozen=True, slots=True)
class BadUnit:
    """A unit that a probe found unusable, and why."""

    unit: str
    reason: str
    found: bool = True
    """True: a probe found the unit, and it does not work. False: the probe did not see the unit: it
    is missing, its backend did not come up, or no time was left to probe it alone; `reason` says
    which. The next probe may find it healthy."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps every unit from being used, however healthy the unit is."""

    reason: str
    advice: str
    """What a person should do about it."""
    lasts: bool = False
    """True: only a person can remove it, so the job ends at once. False: it may go by itself."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Units that are there, and that only a person can make usable: they are set up wrongly."""

    number: int
    """How many these are."""
    reason: str
    """Which units these are, and why they cannot be used."""
    advice: str
    """What a person should do about them."""


@dataclass(frozen=True, slots=True)
class DevicesProbed:
    """The answer to the `ProbeDevices` with this `number`."""

    at: float
    number: int
    healthy: tuple[str, ...]
    """The units to use. Machines of a cluster come in the order in which they are preferred."""
    bad: tuple[BadUnit, ...]
    problem: str | None = None
    """Why the probe found nothing out; None: it did, and `healthy` and `bad` are valid."""
    obstacle: Obstacle | None = None
    """Why no unit can be used, whatever they are like; None: nothing keeps them from it. Then no
    unit is blamed: `bad` names only units that were found bad."""
    unfit: Unfit | None = None
    """The units that a person has to set up otherwise, while there are others; None: there are
    none."""


@dataclass(frozen=True, slots=True)
class RungCompileFailed:
    """The phase's program cannot be compiled for `num_devices` devices; a retry would not help."""

    at: float
    phase: int
    num_devices: int
    reason: str


@dataclass(frozen=True, slots=True)
class QuarantineCleared:
    """A person ended the quarantine of `units`; empty: of all units."""

    at: float
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody asked the job to stop."""

    at: float
    source: StopSource
    detail: str = ""
    """The text of the request and its sender, if there is more to say than the source."""
    at_once: bool = False
    """Whether the short grace period holds, which a second request otherwise asks for."""
    notice: float | None = None
    """How many seconds the machine stays, where the source of a preemption knows it. Such a source
    asks when the save must begin. None: what the policy says."""


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """A person wants a fresh attempt."""

    at: float
    who: str
    """Who asks, for people."""


@dataclass(frozen=True, slots=True)
class SaveRequested:
    """A person wants a checkpoint now; the attempt trains on."""

    at: float
    who: str
    """Who asks, for people."""


@dataclass(frozen=True, slots=True)
class HostsLeaving:
    """Hosts on which workers of the attempt run are about to go. Others stay, or will come."""

    at: float
    attempt: int
    reason: str
    """Which hosts, and why, for people."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank whose host keeps the others waiting. Times are seconds of a step."""

    rank: int
    """Its number."""
    seconds: float
    """Its host's part."""
    peers: float
    """The median of the other hosts' parts."""
    step_seconds: float
    """The whole step."""
    host: str = ""
    """The name of its host."""


@dataclass(frozen=True, slots=True)
class StragglerFound:
    """A rank is behind its peers, and stays so. Told once for each rank of an attempt."""

    at: float
    attempt: int
    straggler: Straggler
    """Which rank, and by how much."""


@dataclass(frozen=True, slots=True)
class DeviceFoundWrong:
    """A check of the workers has found a unit that computes wrongly without an error."""

    at: float
    attempt: int
    unit: str
    """The device, or the host where workers are hosts."""
    step: int
    """The step that was checked."""
    reason: str
    """What it has computed wrongly, for people."""


@dataclass(frozen=True, slots=True)
class LossSpiked:
    """The loss of a step stands out from those before it. It ends nothing: people are told."""

    at: float
    attempt: int
    spike: LossSpike
    """Which step, and what was usual before it."""


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """The time of `JobState.deadline` has come.

    `silence` is set where the hang watchdog has fired. It is part of the event because the workers'
    reports, from which it follows, are not in the journal.
    """

    at: float
    silence: Silence | None = None


Event = (
    SupervisorStarted
    | PhaseBegun
    | WorkersStarted
    | LaunchFailed
    | LaunchCancelled
    | WorkerReported
    | Noticed
    | MaintenanceAnnounced
    | SilenceExcused
    | WorkersIdle
    | NativeStacks
    | LossesNotFinite
    | CheckpointCommitted
    | CheckpointsFound
    | CheckpointSetAside
    | SaveMeasured
    | WorkersObserved
    | WorkersGone
    | DevicesProbed
    | RungCompileFailed
    | QuarantineCleared
    | StopRequested
    | RestartRequested
    | SaveRequested
    | HostsLeaving
    | StragglerFound
    | DeviceFoundWrong
    | LossSpiked
    | DeadlineReached
)

VOLATILE = (WorkerReported, Noticed, SilenceExcused)
"""Journalled only if a decision follows: all other state that they change is volatile, and ends
with the worker group."""
