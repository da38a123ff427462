"""The devices or hosts of the job in their true state."""

from __future__ import annotations

from tests.simulation.chance import Chance
from tests.simulation.scenario import NONE


class Devices:
    """Units that are lost and come back, and that compute wrong results for a while."""

    def __init__(self, chance: Chance) -> None:
        self.units = chance.scenario.policy.phases[0].units
        self.missing: set[str] = set()
        self.wrong: set[str] = set()
        """The units that are lost, and those that compute wrong results."""
        self._chance = chance

    def change_at_random(self) -> None:
        """Change the state of units at random from now on; once no faults are possible, all are
        healthy."""
        chance = self._chance
        if chance.faults is NONE:
            self.missing.clear()
            self.wrong.clear()
            return
        for kind, probability in (
            (self.missing, chance.faults.unit_lost),
            (self.wrong, chance.faults.unit_wrong),
        ):
            if chance.happens(probability):
                unit = chance.rng.choice(self.units)
                kind.symmetric_difference_update({unit})
                chance.tell(f"missing units: {sorted(self.missing)}, wrong: {sorted(self.wrong)}")
        chance.later(chance.between(10.0, 200.0), self.change_at_random)
