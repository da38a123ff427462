"""Maps the devices that a probe process sees to the units of the job.

The process numbers the devices that it sees: 0, 1, ... (their places). Which units these are,
devices or whole hosts, follows from the units that the process was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from supervisor.config import gpus
from supervisor.config.plan import PhasePlan
from supervisor.core.events import BadUnit
from supervisor.engines.worker_environment import visibility_variables
from supervisor.protocol import simulated
from supervisor.protocol.environment import NUM_CPU_DEVICES
from supervisor.protocol.shortening import keep_beginning

_MAX_SHOWN = 300
"""Most characters of what is wrong with a unit."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The healthy and the bad units; or, in `problem`, why nothing could be found out."""

    healthy: tuple[str, ...] = ()
    bad: tuple[BadUnit, ...] = ()
    problem: str | None = None

    def redacted(self, redact: Callable[[str], str]) -> ProbeAnswer:
        """Returns a copy with redacted texts, because an error may hold a secret; the reasons of
        units are also shortened."""
        bad = tuple(
            replace(unit, reason=keep_beginning(redact(unit.reason), _MAX_SHOWN))
            for unit in self.bad
        )
        return replace(self, bad=bad, problem=self.problem and redact(self.problem))


@dataclass(frozen=True, slots=True)
class UnitLayout:
    """Which units a look is about, and how many devices each of them has."""

    wanted: tuple[str, ...] | None = None
    """The units to probe; None: each device that is found is a unit."""
    present: tuple[str, ...] = ()
    """The units of `wanted` that are not known to be lost (only simulated ones can be)."""
    devices_each: int = 1
    """How many accelerators a unit has."""
    shown_each: int | None = 1
    """How many devices JAX shows for each accelerator (two for a tpu7x chip). None: the config does
    not name the TPU, so it is two if JAX shows more devices than there are chips, else one."""

    @classmethod
    def of(cls, plan: PhasePlan, units: tuple[str, ...] | None, lost: frozenset[str]) -> UnitLayout:
        """Returns the layout of `units` (None: all units of the plan), given those that are
        `lost`."""
        each = (plan.num_devices or 0) // len(plan.units) if plan.units else 1
        units = units or plan.units or None
        present = tuple(u for u in units or () if not lost.intersection(_ids_of(u, each)))
        shown = None if plan.platform == "tpu" else 1
        return cls(units, present, each, plan.tpu.devices_per_chip if plan.tpu else shown)

    def broken_places(self, broken: frozenset[str]) -> tuple[int, ...]:
        """Returns the place of the first device of each present unit that is `broken`. A host is
        broken if one of its devices is."""
        each = self.devices_each
        names = (_ids_of(unit, each) for unit in self.present)
        return tuple(i * each for i, those in enumerate(names) if broken.intersection(those))

    def broken_ids(self, broken: frozenset[str]) -> tuple[str, ...]:
        """Returns the ids of the present units, and of their devices, that are `broken`."""
        there = {name for unit in self.present for name in _ids_of(unit, self.devices_each)}
        return tuple(sorted(broken & there))

    def environment(self, plan: PhasePlan, inherited: Mapping[str, str]) -> dict[str, str]:
        """Returns the variables that make a process see the devices of the present units, in their
        order, and no others. Empty: it needs no variables.

        Raises:
            ValueError: one process cannot see just these devices.
            OSError: `inherited` or the config's environment hides some of them.
        """
        own = {**plan.secrets, **plan.env}
        if plan.platform == "cpu" and self.num_devices:
            return {NUM_CPU_DEVICES: str(self.num_devices)}
        is_named = (
            plan.platform == "gpu" and gpus.CUDA_VISIBLE_DEVICES in own and self.num_devices > 0
        )
        if is_named or (plan.platform in ("gpu", "tpu") and self.present != plan.units):
            names = (_ids_of(unit, self.devices_each) for unit in self.present)
            ids = [name for those in names for name in those if name.isdecimal()]
            return visibility_variables(plan, ids, {**inherited, **own})
        return {}

    @property
    def num_devices(self) -> int:
        """How many accelerators there are to probe; 0 if their number is not known."""
        return len(self.present) * self.devices_each

    def answer(self, found: int, bad: Mapping[int, str]) -> ProbeAnswer:
        """Returns the answer for the units, if JAX shows `found` devices. `bad` has the reasons of
        the faulty devices, by their place."""
        if self.wanted is None:
            units = tuple(str(place) for place in range(found))
            return UnitLayout(units, units).answer(found, bad)
        shown = self.shown_each or (2 if found > self.num_devices else 1)
        if found % shown:
            return ProbeAnswer(
                problem=f"JAX shows {found} devices, which is no multiple of the {shown} devices "
                "of a chip"
            )
        each = self.devices_each * shown
        faults = {unit: BadUnit(unit, self._missing(unit), found=False) for unit in self.wanted}
        for index, unit in enumerate(self.present[: found // each]):
            places = range(index * each, (index + 1) * each)
            reasons = [bad[place] for place in places if place in bad]
            if reasons:
                faults[unit] = BadUnit(unit, reasons[0])
            else:
                del faults[unit]
        healthy = tuple(unit for unit in self.wanted if unit not in faults)
        return ProbeAnswer(healthy, tuple(faults.values()))

    def _missing(self, unit: str) -> str:
        return "not found" if unit in self.present else "simulated: not found"


def _ids_of(unit: str, devices_each: int) -> tuple[str, ...]:
    """Returns the ids under which a unit may be listed as broken: its own and, if it is a host,
    those of its devices."""
    if not unit.startswith(simulated.HOST):
        return (unit,)
    first = int(unit.removeprefix(simulated.HOST)) * devices_each
    return (unit, *(str(device) for device in range(first, first + devices_each)))
