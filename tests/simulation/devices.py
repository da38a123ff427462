"""The devices or hosts of the job, as they truly are."""

from __future__ import annotations

from tests.simulation.chance import Chance
from tests.simulation.scenario import NONE


class Devices:
    """Units are lost and come back, compute wrongly and are mended."""

    def __init__(self, chance: Chance) -> None:
        self.units = chance.scenario.policy.phases[0].units
        self.missing: set[str] = set()
        self.wrong: set[str] = set()
        """The units that are not there, and those that compute wrongly."""
        self._chance = chance

    def weather(self) -> None:
        """Have something happen to them from now on; in the end all are well."""
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
        chance.later(chance.between(10.0, 200.0), self.weather)
