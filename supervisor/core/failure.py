"""The values of a failure: how a worker ended, what is known of it, and what was made of that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from supervisor.core.budget import Charge
from supervisor.core.remedy import Remedy
from supervisor.protocol.failure import FailureRecord


class Verdict(StrEnum):
    """What to do about a failure."""

    RESTART = "RESTART"
    FATAL = "FATAL"


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How rank `rank` ended: by an exit `code` or by a `signal` (its name), never both.

    Neither: nobody saw how it ended.
    """

    rank: int
    code: int | None = None
    signal: str | None = None

    @property
    def clean(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.code == 0

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by {self.signal}"
        return f"exit code {self.code}" if self.code is not None else "ended unseen"


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """All that is known of one rank's end. `tail` is the last part of its output."""

    exit: WorkerExit
    record: FailureRecord | None = None
    tail: str = ""
    stage: str | None = None


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
    remedy: Remedy | None = None
    """What is done about it beyond a restart."""
    step: int | None = None
    """The last completed step, by the worker's own record."""
    traceback: str = ""
    """The traceback as the worker recorded it; empty where it left no record."""
