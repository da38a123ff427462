"""How often something of one kind may be written: no flood hides what is rare, or fills a disk."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Allowance:
    """A token bucket: `at_once` times at once, and `per_second` in the long run."""

    at_once: float = 20.0
    per_second: float = 0.1
    used: float = 0.0
    """How many tokens were missing at the time `at`."""
    at: float = 0.0

    def take(self, now: float) -> tuple[bool, Allowance]:
        """Whether it may be written once more at the time `now`, and what is left then."""
        used = max(0.0, self.used - max(0.0, now - self.at) * self.per_second)
        allowed = used + 1 <= self.at_once
        return allowed, replace(self, used=used + allowed, at=max(self.at, now))
