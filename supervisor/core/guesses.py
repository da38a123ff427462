"""The FATAL failures that are guesses: each gets one more attempt, and is believed when it comes
again.

What passes by itself is sometimes reported as what never passes is. To end a job for it costs a
night, and one attempt more costs minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = 64
"""So many are kept, the newest: each has cost a restart, and a job may run for months."""


@dataclass(frozen=True, slots=True)
class Guess:
    """One occurrence of a failure whose FATAL verdict is a guess."""

    signature: str | None
    step: int | None
    """The last completed step; None: nobody told it."""
    highest: int | None
    """The highest step that was committed by then."""
    num_devices: int | None = None
    """The rung, where it may be so only on that many devices."""

    def is_again(self, earlier: Guess) -> bool:
        """Whether it is the same failure as `earlier`: a new checkpoint between them says that
        it is not, unless both came at the same step."""
        if (self.signature, self.num_devices) != (earlier.signature, earlier.num_devices):
            return False
        same_step = self.step is not None and self.step == earlier.step
        return same_step or self.highest == earlier.highest


@dataclass(frozen=True, slots=True)
class Guesses:
    """The guesses of a phase so far, oldest first."""

    known: tuple[Guess, ...] = ()

    def knows(self, guess: Guess) -> bool:
        """Whether the same failure has had its one more attempt already."""
        return any(guess.is_again(earlier) for earlier in self.known)

    def remember(self, guess: Guess) -> Guesses:
        """With that one, whose one more attempt comes now."""
        return Guesses((*self.known, guess)[-MOST:])
