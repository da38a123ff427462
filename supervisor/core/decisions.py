"""Decisions: what is to be done, each with its reason, and what is to be told.

A decision is a complete value: whoever carries it out needs no look into the state. Its effects
answer by posting events. Fields that older journals do not have must have a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import Status
from supervisor.diagnosis.failure import Survivor, WorkerExit
from supervisor.protocol.adjustments import Adjustments
from supervisor.protocol.messages import Stage


@dataclass(frozen=True, slots=True)
class BeginPhase:
    """Make the phase's directory. Answered by `PhaseBegun`."""

    phase: int
    reason: str


class MakeRoom(StrEnum):
    """When to make room on the disk of model_dir."""

    IF_SHORT = "if-short"
    """Only if the disk itself is short of space."""
    ALWAYS = "always"
    """Also if the disk has space left: a quota is what is full."""


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start the worker group of an attempt. Answered by `WorkersStarted` or `LaunchFailed`."""

    attempt: int
    phase: int
    reason: str
    num_devices: int | None = None
    """The rung; None: as the config says."""
    units: tuple[str, ...] = ()
    """What it is placed on; empty: all there is."""
    directory: str = ""
    """The phase's directory, relative to model_dir."""
    adjustments: Adjustments = field(default_factory=Adjustments)
    """How the attempt differs from the config."""
    distrust: str = ""
    """Why it must not resume from the snapshots in memory; empty: it may."""
    make_room: MakeRoom | None = None
    """The last attempt ended because there was no space: what to do about it first."""


@dataclass(frozen=True, slots=True)
class ProbeDevices:
    """Find out which devices are there and compute as they should. Answered by `DevicesProbed`."""

    number: int
    """Of this look, by which its answer is known."""
    attempt: int
    phase: int
    units: tuple[str, ...] | None
    """None: all that the config expects; else only these, because a worker has the others."""
    reason: str


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """Write down what every thread of the workers is doing. Not answered."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """Send SIGTERM to the workers, and to what lives on once its worker has ended. Answered by
    their exits."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class KillWorkers:
    """Kill what is left of the attempt, confirm it gone, judge it. Answered by `WorkersGone`."""

    attempt: int
    exits: tuple[WorkerExit, ...]
    reason: str
    survivors: tuple[Survivor, ...] = ()
    """What should have ended by now, because the workers ended well a while ago."""
    phase: int = 0
    directory: str = ""
    """The phase's directory, relative to model_dir."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing happens until the deadline: told, because a person wonders why."""

    seconds: float
    reason: str
    device_is_busy: bool = False
    """Whether it is for an accelerator that somebody else uses, who is to be named."""


@dataclass(frozen=True, slots=True)
class TellRecovery:
    """Tell what a recovery took, now that a step is complete again."""

    attempt: int
    step: int
    parts: dict[str, float]
    """Seconds of each part, in order; all of the recovery together."""
    lost: int | None
    """Steps that were run after the state that is restored; None: not known."""

    @property
    def seconds(self) -> float:
        """The recovery time."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class TellStages:
    """Tell how long the attempt was in each stage since that was told last: where it enters another
    one, at a new checkpoint, and at its end. Only the journal has it."""

    attempt: int
    stage: Stage | None
    """The stage from now on; None: the attempt has ended, or the program has named none."""
    step: int | None
    """The last completed step that was reported; None: none was."""
    seconds: dict[str, float]
    """By the name of the stage, `UNNAMED` before the program has named one."""
    untold: int = 0
    """Changes of stage in that time that were not told, because there were too many."""


@dataclass(frozen=True, slots=True)
class TellLivelock:
    """Tell that the same failure comes again and again, each time after a new checkpoint."""

    failure: str
    times: int
    total: int
    """Charged restarts of the phase so far."""
    seconds: float
    """For how long it has been so, as far as this supervisor knows."""
    productive: float
    """Seconds of them that became committed steps; at most, if the workers tell no steps."""

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
    | SignalWorkers
    | KillWorkers
    | Wait
    | TellRecovery
    | TellStages
    | TellLivelock
    | FinishJob
)

ONLY_TOLD = (TellRecovery, TellStages, TellLivelock)
"""Nothing is done. They follow from what is volatile too: a replay cannot decide them again."""

NEEDS_DURABLE_JOURNAL = (BeginPhase, StartWorkers, FinishJob)
"""Carried out only once the journal is on disk. Killing never waits for a disk."""
