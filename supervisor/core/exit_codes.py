"""The exit codes of `supervise run`: a contract with service managers and with people.

The numbers are those of sysexits.h where it has a fitting one.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a run of the command ended."""

    SUCCEEDED = 0
    """The job has succeeded."""
    INTERNAL = 1
    """An error of ours: Python's own code for an exception that nobody expected."""
    USAGE = 64
    """The command line is wrong, or names a model_dir without a job."""
    NO_CAPACITY = 69
    """The job waited for devices and still has too few of them. With `init.provision` also: its
    devices stay busy or broken, so it needs another machine."""
    FAILED = 70
    """The job failed for good: another attempt would fail in the same way."""
    OWNED = 73
    """Another supervisor owns this model_dir."""
    CANNOT_WRITE = 74
    """The journal, model_dir, the bucket or standard output cannot be read or written, or what an
    earlier attempt left running cannot be killed."""
    DRAINED = 75
    """The job was asked to stop, by SIGTERM or because the machine goes, and can be resumed."""
    BUDGET_SPENT = 76
    """A restart budget is spent."""
    INVALID_CONFIG = 78
    """The config is wrong, the journal is damaged and needs a person, this user may not execute
    Python, or no host can be used as it is set up."""
    STOPPED = 79
    """A person stopped the job with Ctrl-C; it can be resumed."""

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
