"""How long to train between two saves, where `checkpoint.every` is `auto`: pure.

A save stalls training, and a failure loses the work since the last save. The interval with the
least of both together follows from the cost of a save, which the trainer measures, and from the
mean time between failures, which the supervisor knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import median

from supervisor.protocol.failure_history import FailureHistory

PRIOR_SECONDS = 6 * 3600.0
"""Before anything is known of the job, one failure is assumed in so much time. It weighs as much as
one failure that was seen: a job that runs for days without one soon counts as reliable."""
SHORTEST = 10.0
"""The shortest interval, in seconds. It is also the time until the first save of an attempt."""
LONGEST = 3600.0
"""The longest interval, in seconds: cost and failure rate are estimates, and nobody wants to lose
more than an hour because of them."""
_MOST_COSTS = 9
_RATIO = 10
"""The second save of an attempt comes after at most so many times what the first one took."""
_MUCH = 1.5
"""By which factor an interval changes that people are told of."""


def mean_time_between_failures(history: FailureHistory) -> float:
    """Return the estimate in seconds: the time divided by the failures, both with the prior added.

    It is the mean of the gamma distribution that the prior and a Poisson process of failures give.
    """
    return (PRIOR_SECONDS + history.seconds) / (1 + history.failures)


def best_interval(cost: float, between_failures: float) -> float:
    """Return the seconds from one save to the next, within the bounds: sqrt(2 x cost x mean time
    between failures), all in seconds.

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval",
    Communications of the ACM 17 (9), 1974, p. 530-531, https://doi.org/10.1145/361147.361115.
    """
    return min(max(sqrt(2 * cost * between_failures), SHORTEST), LONGEST)


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """The time between saves, and what it follows from. All times are in seconds.

    The first save of an attempt is measured apart: it also compiles and creates what all others
    use, so it may take ten times as long. It decides only when the next one measures again.
    """

    history: FailureHistory = field(default_factory=FailureHistory)
    """The failures until now."""
    first: float | None = None
    """For how long the first save of this attempt stalled training; None: there was none."""
    costs: tuple[float, ...] = ()
    """The same for the last saves after it, oldest first."""

    def measured(self, cost: float, ran: float) -> SaveInterval:
        """Return the interval after a save that stalled training for `cost`, when training has gone
        on for `ran` since the last measurement."""
        seconds = self.history.seconds + max(0.0, ran)
        history, cost = replace(self.history, seconds=seconds), max(0.0, cost)
        if self.first is None:
            return SaveInterval(history, cost)
        return SaveInterval(history, self.first, (*self.costs, cost)[-_MOST_COSTS:])

    @property
    def is_provisional(self) -> bool:
        """Whether no save but the first one of the attempt was measured."""
        return not self.costs

    @property
    def seconds(self) -> float:
        """The time from one save to the next."""
        if self.first is None:
            return SHORTEST
        between = mean_time_between_failures(self.history)
        if self.is_provisional:
            return max(SHORTEST, min(best_interval(self.first, between), _RATIO * self.first))
        return best_interval(median(self.costs), between)

    def is_news_after(self, told: SaveInterval | None) -> bool:
        """Whether people should be told of it, if they were last told of `told`."""
        if told is None or told.is_provisional:
            return True
        return not 1 / _MUCH < self.seconds / told.seconds < _MUCH

    @property
    def text(self) -> str:
        """The interval and its reasons, for people."""
        if self.is_provisional:
            return (
                f"the next checkpoint is saved in {self.seconds:.0f} s: the first save stalled "
                f"training for {self.first or 0.0:.3g} s, which includes what only the first one "
                "does"
            )
        failures = self.history.failures
        number = "1 failure" if failures == 1 else f"{failures} failures"
        between = _in_words(mean_time_between_failures(self.history))
        return (
            f"a checkpoint every {self.seconds:.0f} s from now on: a save stalls training for "
            f"{median(self.costs):.3g} s, and one failure is expected in {between} "
            f"({number} in {_in_words(self.history.seconds)} so far)"
        )


def _in_words(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
