"""The values of a failure: how a worker ended, what is known of it, and what was made of that."""

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

    Neither: nobody saw how it ended.
    """

    rank: int
    code: int | None = None
    signal: str | None = None
    told_to_stop: bool = False
    """Whether it got a SIGTERM before that the supervisor did not send."""

    @property
    def clean(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.code == 0

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by {self.signal}"
        if self.code is None:
            return "ended unseen"
        return f"exit code {self.code}" + (" after SIGTERM" if self.told_to_stop else "")


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process of the attempt that lives although the worker that it came from has ended."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command})"


def told_survivors(survivors: tuple[Survivor, ...]) -> str:
    """Names the first of them, for people."""
    named = ", ".join(map(str, survivors[:_MOST_NAMED]))
    more = len(survivors) - _MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """All that is known of one rank's end."""

    exit: WorkerExit
    record: FailureRecord | None = None
    output: str = ""
    """What of its output may tell why it ended: see `digest`."""
    stage: str | None = None
    ended_before_kill: bool = False
    """Whether it ended before the supervisor killed any rank: only then its end can be a cause."""
    stacks: str = ""
    """What `faulthandler` wrote into a file of ours when its native code crashed."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the host itself knows of an attempt."""

    oom_kills: int | None = None
    """How many processes of the attempt's cgroup the kernel killed for memory; None: nobody counted
    them."""
    guard_lost: bool = False
    """Whether the guard process, with which the workers die, was killed meanwhile."""
    free_disk: int | None = None
    """Bytes that model_dir's disk has room for."""


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
    """What still ran a while after all workers had ended well."""


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
    """One line: the exception, status or exit it was judged by."""
    rank: int
    exit: str
    charge: Charge = Charge.RESTARTS
    certain: bool = True
    """Of a FATAL: whether it is wrong by construction, and not only looks so. It ends the job at
    once; a guess gets one more attempt. (Older journals tell of the former alone.)"""
    grounds: str = ""
    """Why it is certain, or a guess; empty where it is not FATAL."""
    confidence: Confidence = Confidence.LOW
    signature: str | None = None
    """The same for the same failure; None where nothing was said."""
    compared: bool = True
    """Whether the same signature again proves that it comes each time. (In older journals only such
    failures have a signature.)"""
    remedy: Remedy | None = None
    """What is done about it beyond a restart."""
    step: int | None = None
    """The last completed step, by the worker's own record."""
    hardware: bool = False
    """Whether it points at the devices: they are looked at before anything is started again."""
    machine: bool = False
    """Whether another machine may help where waiting and restarts do not: it points at the devices.
    A hang does so only while they are initialised."""
    per_rung: bool = False
    """Whether it may be so only on this many devices."""
    struck: bool = False
    """Whether somebody else killed its rank, before any other rank ended, and it left no error: so
    it looks when a host is lost."""
    blames_host: bool = False
    """Whether it speaks against the host of its rank, if it comes again and again."""
    traceback: str = ""
    """The traceback as the worker recorded it; empty where it left no record."""
    where: str = ""
    """The place in the user's own code that the root cause passed through last: `FILE:LINE in
    FUNCTION`; empty where that is not known."""

    @property
    def is_guess(self) -> bool:
        """Whether it is FATAL as far as one can guess."""
        return self.verdict is Verdict.FATAL and not self.certain

    @property
    def is_certain(self) -> bool:
        """Whether it is FATAL beyond doubt."""
        return self.verdict is Verdict.FATAL and self.certain

    @property
    def says_fatal(self) -> bool:
        """Whether it is FATAL on account of what was said, not only of how a process ended."""
        return self.verdict is Verdict.FATAL and self.confidence is not Confidence.LOW
