"""Whether the losses that are reported are numbers, and since when they are not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import isfinite


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of a phase, as far as they were reported."""

    finite: int | None = None
    """The step of the last one that was finite; None: none was."""
    since: int | None = None
    """The first step with a loss that is NaN or Inf, after the last finite one; None: the last loss
    was finite, or none was reported. It is kept from attempt to attempt: an attempt that resumes
    from a checkpoint with NaN in it goes on with the same NaN."""
    times: int = 0
    """How many such losses were reported in a row in this attempt."""
    before: int | None = None
    """The newest step that was committed before `since`; None: none is known."""

    def attempt_began(self) -> Losses:
        """Returns the value when another attempt of the phase begins."""
        return replace(self, times=0)

    def reported(
        self, step: int, loss: float, committed: Collection[int], first: int | None = None
    ) -> Losses:
        """Returns the value after the loss of `step`.

        `committed` are steps that are committed. `first` is the first of several steps whose losses
        are alike in being finite or not; None: it is of one step.
        """
        if isfinite(loss):
            return Losses(finite=step)
        first = step if first is None else first
        since = first if self.since is None else min(self.since, first)
        older = [each for each in committed if each < since]
        before = self.before if since == self.since else max(older, default=None)
        return replace(self, since=since, times=self.times + 1, before=before)
