"""Decisions: what to do, each with its reason, and what to tell people.

A decision is a complete value: it is carried out without reading the state. The result comes back
as events. A field that older journals lack must have a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import Status
from supervisor.diagnosis.failure import Survivor, WorkerExit
from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.failure_history import FailureHistory
from supervisor.protocol.messages import Stage


@dataclass(frozen=True, slots=True)
class BeginPhase:
    """Create the phase's directory. Answered by `PhaseBegun`."""

    phase: int
    reason: str
    checkpoints: str | None = None
    """See `JobState.checkpoints`."""
    kinds: tuple[str, ...] = ()
    """See `JobState.checkpoint_kinds`."""


class MakeRoom(StrEnum):
    """When to delete output to free space on the disk of model_dir."""

    IF_SHORT = "if-short"
    """Only if the disk itself is short of space."""
    ALWAYS = "always"
    """Also if the disk has free space, because a quota is exhausted."""


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start the worker group of an attempt. Answered by `WorkersStarted` or `LaunchFailed`."""

    attempt: int
    phase: int
    reason: str
    num_devices: int | None = None
    """The rung, as a number of devices; None: the config decides."""
    units: tuple[str, ...] = ()
    """The units to run on; empty: all."""
    directory: str = ""
    """The phase's directory, relative to model_dir."""
    adjustments: Adjustments = field(default_factory=Adjustments)
    """How the settings of this attempt differ from the config."""
    failures: FailureHistory = field(default_factory=FailureHistory)
    """How often the job has failed so far."""
    distrust: str = ""
    """Why the attempt must not resume from the snapshots in memory; empty: it may."""
    make_room: MakeRoom | None = None
    """Set if the last attempt failed for lack of disk space: when to delete output first."""
    checkpoints: str | None = None
    """See `JobState.checkpoints`."""
    kinds: tuple[str, ...] = ()
    """See `JobState.checkpoint_kinds`."""


@dataclass(frozen=True, slots=True)
class ProbeDevices:
    """Find out which devices are present and compute correctly. Answered by `DevicesProbed`."""

    number: int
    """The number of this probe; its answer repeats it."""
    attempt: int
    phase: int
    units: tuple[str, ...] | None
    """The units to probe, because the workers use the others; None: all that the config expects."""
    reason: str
    left_out: tuple[str, ...] = ()
    """The units in quarantine: where there are more machines than units, others take their place.
    Older journals lack this field."""


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Write the stack of every thread of the workers to their output. Not answered."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class AskToSave:
    """Ask the workers of the attempt for a checkpoint, after which they train on. Not answered: a
    program that does not listen goes on as if nothing had been said."""

    attempt: int
    directory: str
    """See `JobState.directory`."""
    who: str
    """Who asks, for people."""


@dataclass(frozen=True, slots=True)
class CancelLaunch:
    """Do not start the workers of an attempt whose checkpoint is still being verified. Answered by
    `LaunchCancelled`; where the start goes on already, by nothing else than its own answer."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """Send SIGTERM to the workers, and to the survivors of a worker once it has ended. Answered by
    `WorkersObserved` with their exits."""

    attempt: int
    reason: str
    interrupt: bool = False
    """Whether those that handle SIGINT but not SIGTERM get SIGINT: a person asks, who would have
    sent it to the program itself at a terminal."""


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """Kill every process left of the attempt, confirm that they are gone, and judge its end.

    Answered by `WorkersGone`.
    """

    attempt: int
    exits: tuple[WorkerExit, ...]
    reason: str
    survivors: tuple[Survivor, ...] = ()
    """Processes that outlived successful workers for too long; the attempt fails because of
    them."""
    phase: int = 0
    directory: str = ""
    """The phase's directory, relative to model_dir."""
    checkpoints: str | None = None
    """See `JobState.checkpoints`."""
    kinds: tuple[str, ...] = ()
    """See `JobState.checkpoint_kinds`."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Tell people that the job waits, for how long, and why. Nothing else is done."""

    seconds: float
    reason: str
    device_is_busy: bool = False
    """Whether it waits for an accelerator that another process uses: then that process is named."""


@dataclass(frozen=True, slots=True)
class TellRecovery:
    """Tell how long a recovery took, once the first step after it is complete."""

    attempt: int
    step: int
    parts: dict[str, float]
    """The seconds of each part, in order; their sum is the recovery time."""
    lost: int | None
    """How many completed steps must be run again; None: not known."""
    missed: int | None = None
    """The newest committed step, where the program began below it, so that it did not restore it.
    None: nothing says so."""

    @property
    def seconds(self) -> float:
        """The recovery time."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class TellStages:
    """Record how long the attempt was in each stage since the last such record.

    Decided at a change of stage, at a new checkpoint, and at the end of the attempt. It goes to the
    journal only.
    """

    attempt: int
    stage: Stage | None
    """The stage from now on; None: the attempt has ended, or the program names no stages."""
    step: int | None
    """The last completed step that was reported; None: none was."""
    seconds: dict[str, float]
    """Seconds by name of the stage; `UNNAMED` until the program has named one."""
    untold: int = 0
    """How many changes of stage in that time got no record, because there were too many."""


@dataclass(frozen=True, slots=True)
class TellLivelock:
    """Tell that the same failure comes again and again, each time after a new checkpoint."""

    failure: str
    times: int
    total: int
    """Charged restarts of the phase so far."""
    seconds: float
    """For how long this has gone on, as far as this supervisor knows."""
    productive: float
    """How many of these seconds became committed steps; an upper bound if the workers report no
    steps."""

    @property
    def goodput(self) -> float:
        """The share of the time that became committed steps."""
        return min(1.0, self.productive / self.seconds) if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class FinishJob:
    """The job ends."""

    status: Status
    exit_code: ExitCode
    reason: str


Decision = (
    BeginPhase
    | StartWorkers
    | ProbeDevices
    | DumpStacks
    | AskToSave
    | CancelLaunch
    | SignalWorkers
    | KillWorkers
    | Wait
    | TellRecovery
    | TellStages
    | TellLivelock
    | FinishJob
)

ONLY_TOLD = (TellRecovery, TellStages, TellLivelock)
"""Only told or recorded. They depend on volatile state, so a replay cannot decide them again."""

NEEDS_DURABLE_JOURNAL = (BeginPhase, StartWorkers, FinishJob)
"""These wait until the journal is on disk. Killing never waits for a disk."""
