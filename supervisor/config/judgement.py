"""What is made of a failure: verdicts and remedies, by the names that a rule of a config uses."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What to do about a failure."""

    RESTART = "RESTART"
    FATAL = "FATAL"
    POLICY = "POLICY"
    """Its cause has a policy of its own. Where none is carried out yet, it is a restart."""


class Remedy(StrEnum):
    """How the next attempt differs from the last one."""

    LESS_AT_ONCE = "less-at-once"
    """Once again as it was; then with less on the devices at a time; then never again."""
    ROLL_BACK = "roll-back"
    """From the newest checkpoint; where the same step fails twice, without its batch or never."""
    WAIT = "wait"
    """After a while, also the first time: what is in the way may be gone by then."""
    WAIT_LONG = "wait-long"
    """After a long while: somebody has to renew or refill something."""
    WAIT_FOR_CAPACITY = "wait-for-capacity"
    """After a long while and free of charge, until waiting is no use here."""
    WAIT_FOR_STORAGE = "wait-for-storage"
    """After a while and free of charge: not the program fails but what the job is kept in."""
