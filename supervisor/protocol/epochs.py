"""Epochs in the names of checkpoints: the words for them, and which of two saves is the later one.

Some programs begin to count their steps anew in each epoch (`epoch_3_step_5.pkl`). So where the
number of an epoch stands before the step in a name, the epoch decides first, and then the step.
Where the steps go on over the epochs (`epoch=1-step=200.ckpt`), that is the order of the steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

EPOCH = "epochs?|ep|rounds?"
"""The words for an epoch in the names of files and folders, as a part of a regular expression."""
_NUMBERED = re.compile(rf"(?<![a-z])(?:{EPOCH})[_.=-]?(\d{{1,9}})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A step that a program has saved."""

    number: int
    """The number of the step."""
    epochs: tuple[int, ...] = ()
    """The numbers of epochs before the step in its name, as a rule one; empty: there is none."""

    def is_above(self, other: SavedStep) -> bool:
        """Whether the program has saved this step later than the `other` one, by their numbers: the
        epoch decides first, if both names have one."""
        if len(self.epochs) != len(other.epochs):
            return self.number > other.number
        return (self.epochs, self.number) > (other.epochs, other.number)


def epochs_in(text: str) -> tuple[int, ...]:
    """Returns the numbers of epochs in a text, in its order."""
    return tuple(int(found[1]) for found in _NUMBERED.finditer(text))


def without_epochs(text: str) -> str:
    """Returns a text without the numbers of epochs."""
    return _NUMBERED.sub(lambda found: found[0][: -len(found[1])], text)
