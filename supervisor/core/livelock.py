"""Livelock: a new checkpoint each time, and then the same failure.

Each checkpoint refills the restart budget, so such a job goes on for ever. It may still be worth
its cost, so people are warned and told its goodput; only `max_total_restarts` ends it.

The repetitions are durable: they follow from the journal. The goodput is volatile, like all that is
known of steps: a new supervisor measures it from its own start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.signature import normalised

FIRST = 3
"""How many repetitions make a livelock, which people are then told of."""
EVERY = 10
"""People are told again after so many more repetitions."""


@dataclass(frozen=True, slots=True)
class Livelock:
    """How often the same failure has come, each time after a new checkpoint.

    Failures are the same if cause and normalised message are equal. The step does not matter here,
    unlike in a signature: it is a new one each time.
    """

    failure: str | None = None
    times: int = 0
    progressed: bool = False
    """Whether there was a new checkpoint since the last failure."""

    def committed(self) -> Livelock:
        """Returns the livelock after a new checkpoint."""
        return replace(self, progressed=True)

    def failed(self, failure: Failure) -> Livelock:
        """Returns the livelock after a charged failure.

        A repetition without a new checkpoint is not counted: the restart budget counts it.
        """
        what = f"{failure.cause}: {normalised(failure.root_cause)}"
        if what != self.failure:
            return Livelock(what, 1)
        return Livelock(what, self.times + self.progressed)

    @property
    def is_one(self) -> bool:
        """Whether there were enough repetitions to call it a livelock."""
        return self.times >= FIRST

    @property
    def is_due(self) -> bool:
        """Whether people are to be told of this repetition."""
        return self.times == FIRST or (self.is_one and self.times % EVERY == 0)


@dataclass(frozen=True, slots=True)
class Goodput:
    """How much of the time since `began` became committed steps. Seconds on the supervisor's
    clock."""

    began: float = 0.0
    productive: float = 0.0
    mark: float | None = None
    """Since when the work is not committed: the last checkpoint, the first step, or, if the workers
    report no steps, their start. None: there are no workers."""

    def trains(self, at: float) -> Goodput:
        """Returns the goodput after the workers have started, or completed their first step."""
        return replace(self, mark=at)

    def committed(self, at: float) -> Goodput:
        """Returns the goodput after a new checkpoint, which has all work until `at`."""
        if self.mark is None:
            return self
        return replace(self, productive=self.productive + max(0.0, at - self.mark), mark=at)

    def gone(self) -> Goodput:
        """Returns the goodput after the workers have ended."""
        return replace(self, mark=None)
