"""Quarantine: the devices and hosts that are not used for a while, and why.

A unit gets here on evidence only: a probe found that it computes wrongly or hangs, or it had the
root cause of too many failures. A missing unit is not quarantined: it is used as soon as a probe
finds it again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    """The units in quarantine, and the failures that count towards it."""

    entries: tuple[QuarantinedUnit, ...] = ()
    blames: tuple[Blame, ...] = ()

    @property
    def units(self) -> frozenset[str]:
        """The units in quarantine."""
        return frozenset(entry.unit for entry in self.entries)

    def add(self, reasons: Mapping[str, str], until: float) -> Quarantine:
        """Returns the quarantine with the units of `reasons` until the time `until`, each in place
        of its earlier entry."""
        others = (entry for entry in self.entries if entry.unit not in reasons)
        added = (QuarantinedUnit(unit, reason, until) for unit, reason in reasons.items())
        return replace(self, entries=(*others, *added))

    def blame(self, unit: str, at: float, window: float) -> Quarantine:
        """Returns the quarantine after a failure of `unit`; blames older than `window` seconds are
        dropped."""
        recent = tuple(each for each in self.blames if each.at > at - window)
        return replace(self, blames=(*recent, Blame(unit, at)))

    def times_blamed(self, unit: str) -> int:
        """Returns how often `unit` had the root cause, within the window."""
        return sum(1 for each in self.blames if each.unit == unit)

    def expired(self, at: float) -> Quarantine:
        """Returns the quarantine without the entries whose time is over."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.until > at))

    def cleared(self, units: Collection[str]) -> Quarantine:
        """Returns the quarantine without `units` and their blames; `units` empty: without any."""
        return Quarantine(
            tuple(entry for entry in self.entries if units and entry.unit not in units),
            tuple(each for each in self.blames if units and each.unit not in units),
        )

    def on_another_clock(self, shift: float, now: float, longest: float) -> Quarantine:
        """Returns the quarantine on a clock that shows `shift` seconds more, and `now` at this
        moment.

        The shift follows from the time of day, which may have been set. So no entry lasts longer
        than `longest` seconds from now.
        """
        return Quarantine(
            tuple(
                replace(entry, until=min(entry.until + shift, now + longest))
                for entry in self.entries
            ),
            tuple(replace(each, at=min(each.at + shift, now)) for each in self.blames),
        )
