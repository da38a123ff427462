"""What is deleted so that something that is only added to stays within a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.config.quantities import size_text


@dataclass(frozen=True, slots=True)
class Kept:
    """Something that takes room and can be deleted as a whole."""

    name: str
    size: int
    """In bytes."""
    used: float
    """When it was last of use, in any unit: what has the smallest is deleted first."""
    in_use: bool = False
    """Whether it must stay, whatever it takes."""


def excess(found: Sequence[Kept], limit: int) -> tuple[Kept, ...]:
    """What to delete of `found` so that the rest takes at most `limit` bytes: what was of use
    longest ago first, and nothing that is in use. The rest may take more only if all of it is."""
    over = sum(one.size for one in found) - limit
    deleted = []
    for one in sorted(found, key=lambda one: (one.used, one.name)):
        if over <= 0:
            break
        if one.size and not one.in_use:
            deleted.append(one)
            over -= one.size
    return tuple(deleted)


def limit_told(what: str, freed: int, key: str, limit: int) -> str:
    """The line of run.log about what was deleted for the limit of that name."""
    return (
        f"deleted {what}, {size_text(freed)}: together they may take {size_text(limit)} "
        f"(trainer.init.limits.{key})"
    )
