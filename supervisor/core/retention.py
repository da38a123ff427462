"""Choose what to delete so that a growing set of files stays within a size limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.config.quantities import size_text


@dataclass(frozen=True, slots=True)
class Kept:
    """A file or directory that is deleted as a whole, or not at all."""

    name: str
    size: int
    """In bytes."""
    used: float
    """When it was last used, in any unit: the smallest is deleted first."""
    in_use: bool = False
    """Whether it must not be deleted, whatever its size."""


def excess(found: Sequence[Kept], limit: int) -> tuple[Kept, ...]:
    """Returns what to delete so that the rest of `found` takes at most `limit` bytes.

    The least recently used goes first, and what is in use stays. If that alone is more than
    `limit`, so is the rest.
    """
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
    """Returns the sentence about what was deleted for the limit `key`; sizes in bytes."""
    return (
        f"deleted {what}, {size_text(freed)}: together they may take {size_text(limit)} "
        f"(trainer.init.limits.{key})"
    )
