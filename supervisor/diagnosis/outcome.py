"""The vocabulary of a decision about a failure: the verdict, and which budget it spends."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What to do about a failure."""

    RESTART = "RESTART"
    FATAL = "FATAL"
    POLICY = "POLICY"
    """Its cause has a policy of its own. Where none is carried out yet, it is a restart."""


class Charge(StrEnum):
    """Which budget a failure spends."""

    RESTARTS = "restarts"
    PREEMPTIONS = "preemptions"
    NOTHING = "nothing"


class Confidence(StrEnum):
    """How far a verdict may be trusted."""

    HIGH = "high"
    """The text names the cause."""
    MEDIUM = "medium"
    """The text names a kind of failure, or only a consequence of the cause."""
    LOW = "low"
    """Nothing but the exit is known, or the text says nothing that a rule knows."""
