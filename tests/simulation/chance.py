"""Time and chance: what happens later, what goes wrong now, and what must never happen."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.clock import Timeline
from tests.simulation.hazards import NO_HAZARDS, Hazards, random_stream
from tests.simulation.scenario import NONE, Faults, Scenario


class ViolationError(AssertionError):
    """Something happened that must never happen, or something that must happen did not."""


class RandomStream:
    """Draws from one random stream."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def happens(self, probability: float) -> bool:
        """Return True with this probability."""
        return probability > 0.0 and self.rng.random() < probability

    def between(self, low: float, high: float) -> float:
        """Return a random number between `low` and `high`."""
        return self.rng.uniform(low, high)


class Chance(Timeline, RandomStream):
    """A timeline with a random stream, and the faults that are possible at a time."""

    def __init__(self, scenario: Scenario, rng: Random, tell: Callable[[str], None]) -> None:
        """`tell` writes what truly happens, for the person who reads the history."""
        Timeline.__init__(self)
        RandomStream.__init__(self, rng)
        self.scenario = scenario
        self.tell = tell
        self._streams: dict[str, RandomStream] = {}

    def stream(self, name: str) -> RandomStream:
        """Return the draws of the hazard `name`, from a random stream of its own."""
        return self._streams.setdefault(name, RandomStream(random_stream(self.scenario.seed, name)))

    @property
    def hazards(self) -> Hazards:
        """The hazards that are possible now."""
        return self.scenario.hazards if self.clock.time < self.scenario.benign else NO_HAZARDS

    @property
    def faults(self) -> Faults:
        """The probabilities of faults now."""
        return self.scenario.faults if self.clock.time < self.scenario.benign else NONE
