"""FATAL failures that are guesses: each gets one more attempt, and ends the job if it comes again.

A transient fault sometimes has the message of a permanent one. To end a job for it wrongly costs a
night; one more attempt costs minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = 64
"""How many of the newest guesses are kept: a job may run for months."""


@dataclass(frozen=True, slots=True)
class Guess:
    """One occurrence of a failure whose FATAL verdict is a guess."""

    signature: str | None
    step: int | None
    """The last completed step; None: not known."""
    highest: int | None
    """The highest step that was committed by then; None: none was."""
    num_devices: int | None = None
    """The rung, if the failure may be so on that rung only; None: it is so on any."""

    def is_again(self, earlier: Guess) -> bool:
        """Whether it is the same failure as `earlier`.

        With a new checkpoint between them it is another one, unless both came at the same step.
        """
        if (self.signature, self.num_devices) != (earlier.signature, earlier.num_devices):
            return False
        same_step = self.step is not None and self.step == earlier.step
        return same_step or self.highest == earlier.highest


@dataclass(frozen=True, slots=True)
class Guesses:
    """The guesses of a phase so far, oldest first."""

    known: tuple[Guess, ...] = ()

    def knows(self, guess: Guess) -> bool:
        """Whether the same failure has already had its extra attempt."""
        return any(guess.is_again(earlier) for earlier in self.known)

    def remember(self, guess: Guess) -> Guesses:
        """Returns the guesses with `guess`, whose extra attempt comes now."""
        return Guesses((*self.known, guess)[-MOST:])
