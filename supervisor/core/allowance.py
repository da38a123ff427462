"""A rate limit for messages, so that a flood of one kind neither hides others nor fills the
disk."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Allowance:
    """A token bucket: `at_once` times at once, and `per_second` in the long run."""

    at_once: float = 20.0
    per_second: float = 0.1
    used: float = 0.0
    """How many tokens were in use at the time `at`."""
    at: float = 0.0

    def take(self, now: float) -> tuple[bool, Allowance]:
        """Returns whether one more may be written at the time `now`, and the bucket after that."""
        used = max(0.0, self.used - max(0.0, now - self.at) * self.per_second)
        allowed = used + 1 <= self.at_once
        return allowed, replace(self, used=used + allowed, at=max(self.at, now))
