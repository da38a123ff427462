"""The values of a failure: a worker's exit, the evidence about an end, and the judged failure."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.config.judgement import Remedy
from supervisor.diagnosis.outcome import Charge as Charge
from supervisor.diagnosis.outcome import Confidence as Confidence
from supervisor.diagnosis.outcome import Verdict as Verdict
from supervisor.protocol.failure_record import FailureRecord

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How rank `rank` ended: by an exit `code` or by a `signal` (its name), never both.

    Both None: its exit status was not seen.
    """

    rank: int
    code: int | None = None
    signal: str | None = None
    told_to_stop: bool = False
    """Whether it got a SIGTERM before its end that the supervisor did not send."""

    @property
    def clean(self) -> bool:
        """True if it ended with exit code 0."""
        return self.code == 0

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by {self.signal}"
        if self.code is None:
            return "ended unseen"
        return f"exit code {self.code}" + (" after SIGTERM" if self.told_to_stop else "")


@dataclass(frozen=True, slots=True)
class Survivor:
    """A live process of the attempt whose worker has ended."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command})"


def told_survivors(survivors: tuple[Survivor, ...]) -> str:
    """Names the first few survivors, for people."""
    named = ", ".join(map(str, survivors[:_MOST_NAMED]))
    more = len(survivors) - _MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """All that is known of one rank's end."""

    exit: WorkerExit
    record: FailureRecord | None = None
    output: str = ""
    """The part of its output that may tell why it ended: see `digest`."""
    stage: str | None = None
    ended_before_kill: bool = False
    """Whether it ended before the supervisor killed any rank. Only then can a kill from outside
    explain what other ranks suffer, or show that a host was lost."""
    stacks: str = ""
    """The Python stacks that `faulthandler` wrote when native code crashed; empty: none."""
    code_of_reader: bool = False
    """Whether the exit code is that of a process that reads the program's output (`tee`), so that 0
    does not show that the program succeeded."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What is known from the host about an attempt."""

    oom_kills: int | None = None
    """How many processes of the attempt's cgroup the kernel killed for memory; None: not
    counted."""
    guard_lost: bool = False
    """Whether the guard process was killed during the attempt: then the workers die with it."""
    free_disk: int | None = None
    """Free bytes on the disk of model_dir; None: not known."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of an attempt's end."""

    ranks: tuple[RankEvidence, ...]
    step: int | None = None
    """The last completed step that was reported."""
    committed: int | None = None
    """The newest committed step, looked for after every process was gone."""
    pattern_seen: bool = False
    """Whether the success pattern occurred in the output."""
    file_exists: bool = False
    """Whether the success file is there."""
    host: HostFacts = HostFacts()
    survivors: tuple[Survivor, ...] = ()
    """Processes that still ran some time after all workers had ended with success."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt, judged."""

    cause: str
    verdict: Verdict
    rule: str
    reason: str
    """One line: why this verdict."""
    advice: str
    """One line: what the person should do."""
    root_cause: str
    """One line: the exception, status or exit that it was judged by."""
    rank: int
    exit: str
    charge: Charge = Charge.RESTARTS
    certain: bool = True
    """Whether a FATAL cannot be transient by construction. Then it ends the job at once; any other
    FATAL is a guess and gets one more attempt. (Older journals have certain ones only.)"""
    grounds: str = ""
    """Why a FATAL is certain, or a guess; empty if it is not FATAL."""
    confidence: Confidence = Confidence.LOW
    signature: str | None = None
    """A name that is equal for the same failure; None: there was no text to make it of."""
    compared: bool = True
    """Whether the same signature again shows that the failure repeats, so that it may end the job.
    (In older journals only such failures have a signature.)"""
    remedy: Remedy | None = None
    """What is done about it beyond a restart; None: nothing."""
    step: int | None = None
    """The last completed step: of the worker's failure record, or where a remedy or a comparison
    needs it, the last one that was reported. None: not known."""
    hardware: bool = False
    """Whether it points at the devices: they are probed before the next attempt."""
    machine: bool = False
    """Whether replacing the machine may help: it points at the devices. A hang does so only in the
    stage INITIALIZING."""
    per_rung: bool = False
    """Whether the failure may occur only on this number of devices."""
    struck: bool = False
    """Whether its rank was killed from outside before the supervisor killed any, and left no error.
    That is what the loss of a host looks like."""
    blames_host: bool = False
    """Whether repetitions of it count against the host of its rank."""
    traceback: str = ""
    """The traceback in the worker's failure record; empty: there is no record."""
    where: str = ""
    """The innermost place in the user's own code that the error passed through, as `FILE:LINE in
    FUNCTION`; empty: not known."""

    @property
    def is_guess(self) -> bool:
        """True if it is a FATAL that may be wrong: it gets one more attempt."""
        return self.verdict is Verdict.FATAL and not self.certain

    @property
    def is_certain(self) -> bool:
        """True if it is a FATAL that ends the job at once."""
        return self.verdict is Verdict.FATAL and self.certain

    @property
    def says_fatal(self) -> bool:
        """True if it is FATAL because of an error text, not only because of how a process ended."""
        return self.verdict is Verdict.FATAL and self.confidence is not Confidence.LOW
