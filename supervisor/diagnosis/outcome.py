"""The vocabulary of a decision about a failure: the verdict, which budget it spends, and how far
it may be trusted."""

from __future__ import annotations

from enum import StrEnum

from supervisor.config.judgement import Verdict as Verdict


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
