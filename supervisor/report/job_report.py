"""The report of a job: what its journal says of it, as one value with a JSON form.

Times are Unix times in seconds, and durations are seconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from supervisor.protocol.loss_spikes import LossSpike

_FORMAT = 1


class Lane(StrEnum):
    """What a job does at a moment: a row of the timeline."""

    TRAINING = "training"
    EVALUATING = "evaluating"
    SAVING = "saving"
    UNNAMED = "stage not named"
    """The program runs, and has named no stage."""
    COMPILING = "compiling"
    RESTORING = "restoring"
    STARTING = "starting up"
    """Launch, imports and backend."""
    FINISHING = "finishing"
    STOPPING = "stopping"
    """An attempt ends: until no process of it is left."""
    WAITING = "waiting"
    """Backoff, probes, and waiting for devices."""
    NOT_RUNNING = "no supervisor"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in one lane."""

    lane: Lane
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt."""

    number: int
    phase: str
    started: float
    """When its start was decided."""
    ended: float | None
    """None: it goes on, or its end is not in the journal."""
    end: str
    """How it ended (`narrative.ends.AttemptEnd`); RUNNING: it goes on; UNKNOWN: see `ended`."""
    num_devices: int | None
    first_step: int | None
    """The step that it went on from; None: not known."""
    last_step: int | None
    """The last step that it completed, as far as is known."""
    code: str | None = None
    """The code of the verdict; None: it did not fail."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """Why an attempt failed: its evidence, the verdict, and what was decided."""

    attempt: int
    phase: str
    time: float
    exits: tuple[str, ...]
    """How its ranks ended, each as a sentence."""
    stage: str | None
    step: int | None
    committed: int | None
    """The newest checkpoint at its end."""
    rank: int
    """The rank of the root cause."""
    root_cause: str
    place: str
    """Where in the user's code it was raised; empty: not known."""
    traceback: tuple[str, ...]
    """The last lines of it."""
    code: str
    verdict: str
    certain: bool
    cause: str
    reason: str
    advice: str
    restarts: str
    """What it cost: the restarts that are used up, of how many."""
    decision: str
    decided_because: str
    files: str
    """The folder of the attempt in model_dir."""


@dataclass(frozen=True, slots=True)
class RecoveryTime:
    """How long it took from a worker's death to the next completed step."""

    attempt: int
    time: float
    step: int
    parts: dict[str, float]
    lost_steps: int | None

    @property
    def seconds(self) -> float:
        """The whole time."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A step that was complete at a time, as the journal has it."""

    time: float
    step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint that was seen committed."""

    time: float
    step: int
    phase: str
    age: float
    """How long the one before it was the newest, without the time in which no supervisor ran; the
    first one: since the job began."""


@dataclass(frozen=True, slots=True)
class Rung:
    """From a time on, the attempts ran on so many devices."""

    time: float
    num_devices: int


@dataclass(frozen=True, slots=True)
class LossPoint:
    """The losses of neighbouring steps: the smallest, the largest and the last of them."""

    step: int
    low: float
    high: float
    last: float


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The losses of a phase over its steps. Of a step that was run again, the last run counts."""

    phase: str
    points: tuple[LossPoint, ...]
    restarts: tuple[int, ...]
    """The steps after which another attempt went on."""
    not_finite: int
    """How many losses were NaN or Inf; they are in no point."""
    spikes: tuple[LossSpike, ...] = ()
    """The newest losses that stand out, by step."""
    data_wait: float | None = None
    """The share of the time in which training waits for data, the median; None: not known."""
    mfu: float | None = None
    """The model FLOPs utilisation, the median; None: not known."""
    replay: str = ""
    """The command that runs a step of the phase again, with N for the step; empty: none can."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where the job stands, and what a person should know first."""

    job: str
    model_dir: str
    made: float
    """When the report was made."""
    status: str
    standing: str
    """One line."""
    supervisor: str | None
    """The process that owns the job; None: none is known."""
    exit_code: int | None
    ended_because: str
    """Why the job ended; empty: it has not."""
    cause: str
    """The last failure that counts; empty: there is none."""
    code: str
    advice: str
    goodput: str
    """One line; empty: not known."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a job."""

    head: Head
    began: float
    """When the job began."""
    until: float
    """The time up to which the timeline goes."""
    spans: tuple[Span, ...]
    attempts: tuple[Attempt, ...]
    failures: tuple[FailedAttempt, ...]
    recoveries: tuple[RecoveryTime, ...]
    goodput: dict[str, Any] | None
    """See `goodput.goodput_text.goodput_record`; None: not known."""
    steps: tuple[StepSeen, ...]
    commits: tuple[Commit, ...]
    rungs: tuple[Rung, ...]
    losses: tuple[LossCurve, ...] = ()
    no_losses: str = ""
    """Why there are no losses, or not all of them; empty: all are there."""
    missing: str = ""
    """Which records of the journal could not be read; empty: all could."""
    full_rung: int | None = None
    """The devices of the largest rung; None: not known."""

    def as_json(self) -> dict[str, Any]:
        """Returns the report as JSON: see docs/how-to/report.md."""
        return {"v": _FORMAT, **asdict(self)}
