"""The units that a look at the devices is about, and what its findings say of them.

A process sees its devices as places: 0, 1, ... Which units these are, devices or whole hosts,
follows from what it was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from supervisor.config import gpus
from supervisor.config.plan import PhasePlan
from supervisor.core.events import BadUnit
from supervisor.engines.worker_environment import visible
from supervisor.protocol import simulated
from supervisor.protocol.environment import NUM_CPU_DEVICES
from supervisor.protocol.shortening import beginning

_MAX_SHOWN = 300
"""Characters of what is wrong with a unit."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The units that are well, and those that are not; or why nothing could be found out."""

    healthy: tuple[str, ...] = ()
    bad: tuple[BadUnit, ...] = ()
    problem: str | None = None

    def redacted(self, redact: Callable[[str], str]) -> ProbeAnswer:
        """The same without the secrets that `redact` takes out: an error may tell some."""
        bad = tuple(
            replace(unit, reason=beginning(redact(unit.reason), _MAX_SHOWN)) for unit in self.bad
        )
        return replace(self, bad=bad, problem=self.problem and redact(self.problem))


@dataclass(frozen=True, slots=True)
class UnitLayout:
    """Which units a look is about, before anybody has looked."""

    asked: tuple[str, ...] | None = None
    """The units that are wanted; None: each device that is found is a unit."""
    present: tuple[str, ...] = ()
    """Those of `asked` that are not known to be lost."""
    devices_each: int = 1
    """Accelerators of a unit."""
    shown_each: int | None = 1
    """Devices that JAX shows of an accelerator (two of a tpu7x chip). None: nobody has said which
    TPU it is, so it is two where JAX shows more devices than there are chips."""

    @classmethod
    def of(cls, plan: PhasePlan, units: tuple[str, ...] | None, lost: frozenset[str]) -> UnitLayout:
        """The layout of `units` (None: all units of the plan), without those that are `lost`."""
        each = (plan.num_devices or 0) // len(plan.units) if plan.units else 1
        units = units or plan.units or None
        present = tuple(u for u in units or () if not lost.intersection(_names(u, each)))
        shown = None if plan.platform == "tpu" else 1
        return cls(units, present, each, plan.tpu.devices_per_chip if plan.tpu else shown)

    def places(self, broken: frozenset[str]) -> tuple[int, ...]:
        """The place of the first device of each unit that is present, and `broken`."""
        each = self.devices_each
        names = (_names(unit, each) for unit in self.present)
        return tuple(i * each for i, those in enumerate(names) if broken.intersection(those))

    def names(self, broken: frozenset[str]) -> tuple[str, ...]:
        """Those of its units, and of their devices, that are `broken`."""
        there = {name for unit in self.present for name in _names(unit, self.devices_each)}
        return tuple(sorted(broken & there))

    def environment(self, plan: PhasePlan, inherited: Mapping[str, str]) -> dict[str, str]:
        """What makes a process see the devices of the units that are present, in their order.

        Raises:
            ValueError: no process can see just these.
            OSError: the environment hides some of them.
        """
        own = {**plan.secrets, **plan.env}
        if plan.platform == "cpu" and self.num_devices:
            return {NUM_CPU_DEVICES: str(self.num_devices)}
        is_named = plan.platform == "gpu" and gpus.VISIBLE in own and self.num_devices > 0
        if is_named or (plan.platform in ("gpu", "tpu") and self.present != plan.units):
            names = (_names(unit, self.devices_each) for unit in self.present)
            ids = [name for those in names for name in those if name.isdecimal()]
            return visible(plan, ids, {**inherited, **own})
        return {}

    @property
    def num_devices(self) -> int:
        """How many accelerators are to be looked at, as far as is known."""
        return len(self.present) * self.devices_each

    def answer(self, found: int, bad: Mapping[int, str]) -> ProbeAnswer:
        """What follows where JAX shows `found` devices, some of them `bad` (by their place)."""
        if self.asked is None:
            units = tuple(str(place) for place in range(found))
            return UnitLayout(units, units).answer(found, bad)
        shown = self.shown_each or (2 if found > self.num_devices else 1)
        if found % shown:
            return ProbeAnswer(problem=f"JAX shows {found} devices, and {shown} of each chip")
        each = self.devices_each * shown
        faults = {unit: BadUnit(unit, self._missing(unit), found=False) for unit in self.asked}
        for index, unit in enumerate(self.present[: found // each]):
            places = range(index * each, (index + 1) * each)
            reasons = [bad[place] for place in places if place in bad]
            if reasons:
                faults[unit] = BadUnit(unit, reasons[0])
            else:
                del faults[unit]
        healthy = tuple(unit for unit in self.asked if unit not in faults)
        return ProbeAnswer(healthy, tuple(faults.values()))

    def _missing(self, unit: str) -> str:
        return "not found" if unit in self.present else "simulated: not found"


def _names(unit: str, devices_each: int) -> tuple[str, ...]:
    """The ids by which a unit may be broken: its own, and where it is a host those of its
    devices."""
    if not unit.startswith(simulated.HOST):
        return (unit,)
    first = int(unit.removeprefix(simulated.HOST)) * devices_each
    return (unit, *(str(device) for device in range(first, first + devices_each)))
