"""Progress that leads nowhere: a new checkpoint each time, and then the same failure.

Each of those checkpoints refills the restart budget, so such a job goes on for ever. It may be
worth its price all the same: so it is warned of, with the goodput that it leaves, and ended only by
`max_total_restarts`.

The repetitions follow from the journal. What the goodput is measured by is volatile, as is all that
is known of steps: a supervisor that starts anew measures from its own start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.signature import normalised

FIRST = 3
"""So many times are a livelock: it is told then."""
EVERY = 10
"""It is told again after each so many times."""


@dataclass(frozen=True, slots=True)
class Livelock:
    """How often the same failure has come, each time after a new checkpoint.

    It is the same by its cause and its words: at which step it came is no matter here, unlike for a
    signature, as there are new steps each time.
    """

    failure: str | None = None
    times: int = 0
    progressed: bool = False
    """Whether there is a new checkpoint since it came last."""

    def committed(self) -> Livelock:
        """After a new checkpoint."""
        return replace(self, progressed=True)

    def failed(self, failure: Failure) -> Livelock:
        """After a charged failure; without a new checkpoint since the last it is the restart
        budget's."""
        what = f"{failure.cause}: {normalised(failure.root_cause)}"
        if what != self.failure:
            return Livelock(what, 1)
        return Livelock(what, self.times + self.progressed)

    @property
    def is_one(self) -> bool:
        """Whether that was often enough."""
        return self.times >= FIRST

    @property
    def is_due(self) -> bool:
        """Whether a person is told at this time."""
        return self.times == FIRST or (self.is_one and self.times % EVERY == 0)


@dataclass(frozen=True, slots=True)
class Goodput:
    """How much of the time since `began` became committed steps. Seconds of our own clock."""

    began: float = 0.0
    productive: float = 0.0
    mark: float | None = None
    """Since when the workers do what is not committed yet: since their last checkpoint, their first
    step, or, if they tell no steps, since their start. None: there are none."""

    def trains(self, at: float) -> Goodput:
        """The workers run, or have completed their first step."""
        return replace(self, mark=at)

    def committed(self, at: float) -> Goodput:
        """What was done until now is in a new checkpoint."""
        if self.mark is None:
            return self
        return replace(self, productive=self.productive + max(0.0, at - self.mark), mark=at)

    def gone(self) -> Goodput:
        """There are no workers any more."""
        return replace(self, mark=None)
