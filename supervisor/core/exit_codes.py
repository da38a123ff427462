"""The exit codes of `supervise run`: a contract with service managers and with people.

The numbers are those of sysexits.h where it has a fitting one.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a run of the command ended."""

    SUCCEEDED = 0
    INTERNAL = 1
    """An error of ours; Python's own code for an exception that nobody expected."""
    USAGE = 64
    NO_CAPACITY = 69
    FAILED = 70
    OWNED = 73
    CANNOT_WRITE = 74
    DRAINED = 75
    BUDGET_SPENT = 76
    INVALID_CONFIG = 78
    STOPPED = 79

    @property
    def for_good(self) -> bool:
        """Whether a person has to change something first: run again, the counts begin at zero."""
        return self in (ExitCode.FAILED, ExitCode.BUDGET_SPENT)

    @property
    def run_again(self) -> bool:
        """Whether a service manager should run the command again by itself."""
        return self in (
            ExitCode.INTERNAL,
            ExitCode.NO_CAPACITY,
            ExitCode.CANNOT_WRITE,
            ExitCode.DRAINED,
        )
