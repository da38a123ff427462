"""The vocabulary of a judgement: the verdict, the budget that a failure spends, the confidence."""

from __future__ import annotations

from enum import StrEnum

from supervisor.config.judgement import Verdict as Verdict


class Charge(StrEnum):
    """The budget that a failure spends."""

    RESTARTS = "restarts"
    PREEMPTIONS = "preemptions"
    NOTHING = "nothing"


class Confidence(StrEnum):
    """How reliable a verdict is."""

    HIGH = "high"
    """The text names the cause."""
    MEDIUM = "medium"
    """The text names a kind of failure, or only a consequence of the cause."""
    LOW = "low"
    """Only the exit is known, or no rule knows the text."""
