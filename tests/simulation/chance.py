"""Time and luck: what happens later, what goes wrong now, and what must never happen."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.clock import Timeline
from tests.simulation.hazards import NO_HAZARDS, Hazards, stream
from tests.simulation.scenario import NONE, Faults, Scenario


class ViolationError(AssertionError):
    """Something happened that must never happen, or did not happen that must."""


class Dice:
    """Throws of the dice, from one random stream."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def happens(self, probability: float) -> bool:
        """Whether something happens that is so likely."""
        return probability > 0.0 and self.rng.random() < probability

    def between(self, low: float, high: float) -> float:
        """Some number of seconds."""
        return self.rng.uniform(low, high)


class Chance(Timeline, Dice):
    """A timeline with dice."""

    def __init__(self, scenario: Scenario, rng: Random, tell: Callable[[str], None]) -> None:
        """`tell` the person who reads the history what truly happens."""
        Timeline.__init__(self)
        Dice.__init__(self, rng)
        self.scenario = scenario
        self.tell = tell
        self._dice: dict[str, Dice] = {}

    def dice(self, name: str) -> Dice:
        """Those of a hazard, from a random stream of its own."""
        return self._dice.setdefault(name, Dice(stream(self.scenario.seed, name)))

    @property
    def hazards(self) -> Hazards:
        """What else can go wrong now."""
        return self.scenario.hazards if self.clock.time < self.scenario.benign else NO_HAZARDS

    @property
    def faults(self) -> Faults:
        """What can go wrong now."""
        return self.scenario.faults if self.clock.time < self.scenario.benign else NONE
