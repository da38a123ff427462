"""Find out by the clocks whether this process did not run for a while.

Another supervisor can take the lease while its owner stands still: the machine sleeps, a hypervisor
or a cgroup freezer holds it, or somebody stops the supervisor. No single clock tells how long that
took. CLOCK_MONOTONIC stops while the machine sleeps, CLOCK_BOOTTIME does not; a hypervisor may stop
both, and then the wall clock is set forward. So all three are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

LIMIT = 5.0
"""Seconds that a clock may be off, or a check may come late, without consequences."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What the clocks show at one moment, in seconds."""

    monotonic: float
    boot: float
    """Like `monotonic`, but it goes on while the machine sleeps."""
    wall: float


def jump(before: ClockReading, now: ClockReading, pause: float) -> str | None:
    """Returns what happened between two readings meant to be `pause` seconds apart.

    If it is not None, the lease must be checked before the workers may go on.
    """
    passed = now.monotonic - before.monotonic
    slept = now.boot - before.boot - passed
    moved = now.wall - before.wall - passed
    if slept > LIMIT:
        return f"the machine slept for {slept:.0f} s"
    if passed - pause > LIMIT:
        return f"the supervisor did not run for {passed - pause:.0f} s"
    if abs(moved) > LIMIT:
        return f"the wall clock jumped by {moved:+.0f} s"
    return None
