"""When a failure is the same one again: the ledger's own reading of the design."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guess:
    """One occurrence of a failure whose FATAL verdict is a guess."""

    signature: str | None
    step: int | None
    """The last step that was reported."""
    commits: int
    """How much progress there was by then."""
    rung: int | None
    """The rung, if the failure is about that."""

    def is_again(self, earlier: Sequence[Guess]) -> bool:
        """Whether it is the same as one of `earlier`: without progress between them, or at the same
        step."""
        this = (self.signature, self.rung)
        same = [guess for guess in earlier if (guess.signature, guess.rung) == this]
        at_step = self.step is not None and self.step in [guess.step for guess in same]
        return at_step or self.commits in [guess.commits for guess in same]


def comes_too_often(
    signature: str, failed: Sequence[str], limit: int | None, *, has_progressed: bool
) -> bool:
    """Whether the same thing went wrong too often without a checkpoint between."""
    if limit is None:
        limit = 3 if has_progressed else 2
    return limit != 0 and failed.count(signature) >= limit
