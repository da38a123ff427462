"""For how long the workers of an attempt have done nothing.

A program that has done its work and does not exit is as silent as one that evaluates, or writes out
its result. The difference: it prints nothing and uses no CPU time either.
"""

from __future__ import annotations

from dataclasses import dataclass

_BUSY = 0.05
"""Share of a core from which on a worker works. The threads of an idle Python program (a progress
bar, a client for metrics) use less."""
_MAX_GAP = 10.0
"""Most seconds between two looks that count: a supervisor that was frozen has seen nothing."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What a worker, with all processes below it, has done since it was started."""

    reports: int = 0
    """How many messages it has sent."""
    output: int = 0
    """How many bytes it has printed."""
    cpu: float = 0.0
    """CPU seconds that it has used; less than before if one of its processes has ended."""

    def is_still(self, before: Activity, seconds: float) -> bool:
        """Whether nothing was done in the `seconds` since it was `before`."""
        used = self.cpu - before.cpu
        same = (self.reports, self.output) == (before.reports, before.output)
        return same and 0.0 <= used < _BUSY * seconds


@dataclass(frozen=True, slots=True)
class Idleness:
    """What the last look at the workers has shown."""

    seconds: float = 0.0
    """For how long all of them have done nothing."""
    at: float | None = None
    """When that look was; None: there was none."""
    workers: tuple[Activity, ...] = ()

    def looked(self, at: float, workers: tuple[Activity, ...]) -> Idleness:
        """Returns the value after a look at the live workers."""
        if self.at is None or len(workers) != len(self.workers):
            return Idleness(0.0, at, workers)
        passed = at - self.at
        pairs = zip(workers, self.workers, strict=True)
        if not all(now.is_still(before, passed) for now, before in pairs):
            return Idleness(0.0, at, workers)
        return Idleness(self.seconds + min(passed, _MAX_GAP), at, workers)
