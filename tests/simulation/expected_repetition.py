"""When a failure counts as the same again: a second implementation of the design, for the
account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guess:
    """One failure with a FATAL verdict that is a guess."""

    signature: str | None
    step: int | None
    """The last step that was reported before it."""
    commits: int
    """How often there had been progress before it."""
    rung: int | None
    """The rung; None: the failure is not about the rung."""

    def is_again(self, earlier: Sequence[Guess]) -> bool:
        """True if it is the same as one of `earlier`: without progress between the two, or at the
        same step."""
        this = (self.signature, self.rung)
        same = [guess for guess in earlier if (guess.signature, guess.rung) == this]
        at_step = self.step is not None and self.step in [guess.step for guess in same]
        return at_step or self.commits in [guess.commits for guess in same]


def comes_too_often(
    signature: str, failed: Sequence[str], limit: int | None, *, has_progressed: bool
) -> bool:
    """True if failures with this signature came too often without a checkpoint between them."""
    if limit is None:
        limit = 3 if has_progressed else 2
    return limit != 0 and failed.count(signature) >= limit
