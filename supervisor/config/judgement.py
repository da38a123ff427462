"""Verdicts and remedies: what to do about a failure. A rule in a config uses these names."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What to do about a failure."""

    RESTART = "RESTART"
    FATAL = "FATAL"
    POLICY = "POLICY"
    """Restart with a remedy. Without a remedy it is a plain restart."""


class Remedy(StrEnum):
    """How the next attempt differs from the last one."""

    LESS_AT_ONCE = "less-at-once"
    """Restart unchanged the first time, then once with less on the devices at a time, if the
    program offers that. The next failure without a new checkpoint ends the job."""
    ROLL_BACK = "roll-back"
    """Restart from the newest checkpoint. If the same step fails twice, skip its batch; end the job
    if it cannot be skipped."""
    WAIT = "wait"
    """Wait before the restart, also the first time: the obstacle may be gone then."""
    WAIT_LONG = "wait-long"
    """Wait for a long time before the restart: a person has to renew or refill something."""
    WAIT_FOR_CAPACITY = "wait-for-capacity"
    """Wait for a long time before the restart, without a charge. The job ends after
    `core.remediation.CAPACITY_WAITS` waits in a row."""
    WAIT_FOR_STORAGE = "wait-for-storage"
    """Wait before the restart, without a charge: the storage of the job fails, not the program. The
    job ends after `core.remediation.STORAGE_WAITS` waits in a row without a new checkpoint."""
