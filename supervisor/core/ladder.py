"""The rung that the next attempt runs on, and its units: devices, or hosts with one worker each.

A ladder is a list of device counts in descending order. A job leaves a rung only on evidence: too
few units are healthy, or the program cannot be compiled for that rung.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate, compress

from supervisor.core.policy import PhasePolicy, RestartPolicy


@dataclass(frozen=True, slots=True)
class Struck:
    """A rung that is out of use, because the program cannot run on so many devices."""

    num_devices: int
    reason: str


@dataclass(frozen=True, slots=True)
class Placement:
    """A rung and the units that make it up."""

    num_devices: int
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ladder:
    """Where the phase stands on its ladder."""

    placement: Placement | None = None
    """None: on the full rung, with all units."""
    struck: tuple[Struck, ...] = ()
    doubtful: bool = False
    """Whether units were missing when last probed: then they are probed before the next start."""
    larger_since: float | None = None
    """Since when a larger rung has been usable without a break; None: it is not."""
    look_at: float | None = None
    """When to probe again for a larger rung while an attempt runs; None: never."""
    grown_at: float | None = None
    flaps: int = 0
    """How often in a row the job had to shrink again soon after it had grown."""
    seen: tuple[str, ...] = ()
    """The machines of a cluster that the last probe found healthy, also those that are not used."""

    def units(self, phase: PhasePolicy) -> tuple[str, ...]:
        """Returns the units that the attempt runs on."""
        return self.placement.units if self.placement is not None else phase.units

    def hosts(self, phase: PhasePolicy) -> tuple[str, ...]:
        """Returns the host of each rank of the attempt, if these are machines of a cluster."""
        return self.units(phase) if phase.num_hosts else ()

    def num_devices(self, phase: PhasePolicy) -> int | None:
        """Returns the rung as a number of devices; None: that number is not known."""
        if self.placement is not None:
            return self.placement.num_devices
        return phase.rungs[0] if phase.rungs else None

    def is_shrunk(self, phase: PhasePolicy) -> bool:
        """Whether it is below the full rung."""
        return self.placement is not None and self.placement.num_devices < phase.rungs[0]

    def begin_to_look(self, phase: PhasePolicy, policy: RestartPolicy, at: float) -> Ladder:
        """Returns the ladder of an attempt that runs: on a smaller rung, probes for a larger one
        begin."""
        if not (policy.regrow_at_checkpoint and self.is_shrunk(phase)):
            return self
        return replace(self, look_at=at + policy.regrow_interval)

    def strike(self, num_devices: int, reason: str) -> Ladder:
        """Returns the ladder without the rung of `num_devices`."""
        others = tuple(each for each in self.struck if each.num_devices != num_devices)
        return replace(self, struck=(*others, Struck(num_devices, reason)))

    def place(self, phase: PhasePolicy, usable: Collection[str]) -> Placement | None:
        """Returns the largest rung that `usable` units make up, in an aligned run if they must be
        side by side; None: not even the smallest. The order of `usable` counts only for machines of
        a cluster: who comes first is preferred."""
        struck = {each.num_devices for each in self.struck}
        if phase.num_hosts:
            return self._place_on_hosts(phase, usable, struck)
        known = frozenset(usable)
        there = [unit in known for unit in phase.units]
        before = (0, *accumulate(there))
        for num_devices in phase.rungs:
            size = num_devices * len(phase.units) // phase.rungs[0]
            if num_devices in struck or size > before[-1]:
                continue
            if not phase.side_by_side:
                return Placement(num_devices, tuple(compress(phase.units, there))[:size])
            for end in range(size, len(phase.units) + 1, size):
                if before[end] - before[end - size] == size:
                    return Placement(num_devices, phase.units[end - size : end])
        return None

    def _place_on_hosts(
        self, phase: PhasePolicy, usable: Collection[str], struck: Set[int]
    ) -> Placement | None:
        """Returns the largest rung that any machines of `usable` make up. Previous members come
        first, and keep their ranks."""
        before = self.placement.units if self.placement is not None else ()
        there = dict.fromkeys(usable)
        stay = dict.fromkeys(unit for unit in before if unit in there)
        by_preference = (*stay, *(unit for unit in there if unit not in stay))
        for num_devices in phase.rungs:
            size = num_devices * phase.num_hosts // phase.rungs[0]
            if num_devices not in struck and size <= len(there):
                return Placement(num_devices, _keeping_ranks(by_preference[:size], before))
        return None

    def moved(self, phase: PhasePolicy, to: Placement, at: float, soon: float) -> Ladder:
        """Returns the ladder on rung `to`. To shrink within `soon` seconds of having grown is a
        flap."""
        before, after = self.num_devices(phase) or 0, to.num_devices
        moved = replace(self, placement=to, doubtful=False, larger_since=None, look_at=None)
        if after > before:
            return replace(moved, grown_at=at)
        if after < before:
            soon_again = self.grown_at is not None and at - self.grown_at < soon
            return replace(moved, grown_at=None, flaps=self.flaps + 1 if soon_again else 0)
        return moved


def _keeping_ranks(chosen: Collection[str], before: Sequence[str]) -> tuple[str, ...]:
    """Returns the units of `chosen` in the order of their ranks: those of `before` keep theirs, as
    far as there are so many ranks, and the others take what is left."""
    places: list[str | None] = [None] * len(chosen)
    without_rank = dict.fromkeys(chosen)
    for rank, unit in enumerate(before[: len(places)]):
        if unit in without_rank:
            places[rank] = unit
            del without_rank[unit]
    left = iter(without_rank)
    return tuple(unit if unit is not None else next(left) for unit in places)
