"""What the clocks say about the time that this process did not run.

A lease is lost to others while its owner stands still: the machine sleeps, a hypervisor or the
freezer of a cgroup holds it, somebody stops the supervisor. Whoever wakes cannot tell how long that
took from one clock. CLOCK_MONOTONIC stands still while the machine sleeps, CLOCK_BOOTTIME does not;
a hypervisor may hold both, and then the wall clock is set forward. So all three are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

LIMIT = 5.0
"""Seconds that a clock may be off, or a look may come late, with nothing to be done."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What the clocks show at one moment, in seconds."""

    monotonic: float
    boot: float
    """Like `monotonic`, and it goes on while the machine sleeps."""
    wall: float


def jump(before: ClockReading, now: ClockReading, pause: float) -> str | None:
    """What happened between two looks that were to be `pause` seconds apart, if the lease must be
    asked before the workers may go on; None: nothing of the kind."""
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
