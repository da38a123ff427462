"""Which devices and hosts are not to be used for a while, and why.

A unit gets here by evidence alone: a probe found it to compute wrongly or to hang, or it was where
the root cause of too many failures lay. One that is merely not there needs no quarantine: it can be
used as soon as it is found again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class QuarantinedUnit:
    """A unit that is not used before the time `until` (seconds on the supervisor's clock)."""

    unit: str
    reason: str
    until: float


@dataclass(frozen=True, slots=True)
class Blame:
    """A failure whose root cause lay in a unit."""

    unit: str
    at: float


@dataclass(frozen=True, slots=True)
class Quarantine:
    """What is in quarantine, and what may get there."""

    entries: tuple[QuarantinedUnit, ...] = ()
    blames: tuple[Blame, ...] = ()

    @property
    def units(self) -> frozenset[str]:
        """The units that are not to be used."""
        return frozenset(entry.unit for entry in self.entries)

    def add(self, unit: str, reason: str, until: float) -> Quarantine:
        """With one more; what was known of it before is replaced."""
        others = tuple(entry for entry in self.entries if entry.unit != unit)
        return replace(self, entries=(*others, QuarantinedUnit(unit, reason, until)))

    def blame(self, unit: str, at: float, window: float) -> Quarantine:
        """After one more failure of it; what is older than `window` seconds is forgotten."""
        recent = tuple(each for each in self.blames if each.at > at - window)
        return replace(self, blames=(*recent, Blame(unit, at)))

    def times_blamed(self, unit: str) -> int:
        """How often it was the root cause, within the window."""
        return sum(1 for each in self.blames if each.unit == unit)

    def expired(self, at: float) -> Quarantine:
        """Without those whose time is over."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.until > at))

    def cleared(self, units: Collection[str]) -> Quarantine:
        """Without `units` (none named: without any), and with no blame on them."""
        return Quarantine(
            tuple(entry for entry in self.entries if units and entry.unit not in units),
            tuple(each for each in self.blames if units and each.unit not in units),
        )

    def on_another_clock(self, shift: float, now: float, longest: float) -> Quarantine:
        """The same on a clock that shows `shift` seconds more, and `now` at this moment.

        That is known by the time of day, which may have been set: nothing lasts beyond `longest`
        seconds from now.
        """
        return Quarantine(
            tuple(
                replace(entry, until=min(entry.until + shift, now + longest))
                for entry in self.entries
            ),
            tuple(replace(each, at=min(each.at + shift, now)) for each in self.blames),
        )
