"""Time and luck: what happens later, what goes wrong now, and what must never happen."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.clock import Timeline
from tests.simulation.scenario import NONE, Faults, Scenario


class ViolationError(AssertionError):
    """Something happened that must never happen, or did not happen that must."""


class Chance(Timeline):
    """A timeline with dice."""

    def __init__(self, scenario: Scenario, rng: Random, tell: Callable[[str], None]) -> None:
        """`tell` the person who reads the history what truly happens."""
        super().__init__()
        self.scenario = scenario
        self.rng = rng
        self.tell = tell

    @property
    def faults(self) -> Faults:
        """What can go wrong now."""
        return self.scenario.faults if self.clock.time < self.scenario.benign else NONE

    def happens(self, probability: float) -> bool:
        """A throw of the dice."""
        return probability > 0.0 and self.rng.random() < probability

    def between(self, low: float, high: float) -> float:
        """Some number of seconds."""
        return self.rng.uniform(low, high)
