"""Dangers that not every world has. Each is drawn from a random stream of its own, so that a new
one changes no history that it does not touch."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


def stream(seed: int, name: str) -> Random:
    """The random stream that is called `name`, of the history of `seed`."""
    return Random(f"{seed} {name}")


@dataclass(frozen=True, slots=True)
class Hazards:
    """What the world of one seed has of them."""

    prefetches: bool = False
    """The job compiles ahead for the rungs that are next to its own."""
    guard_dies: tuple[float, ...] = ()
    """When somebody kills the guard process; none: it is left alone."""


NO_HAZARDS = Hazards()


def draw_hazards(seed: int, benign: float) -> Hazards:
    """The dangers in the world of `seed`, in which nothing goes wrong any more from `benign` on."""
    return Hazards(
        prefetches=stream(seed, "prefetch").random() < 0.7,
        guard_dies=_some_moments(stream(seed, "guard"), benign),
    )


def _some_moments(rng: Random, until: float) -> tuple[float, ...]:
    """A few moments in every third world."""
    if rng.random() > 1 / 3:
        return ()
    return tuple(sorted(rng.uniform(0.0, until) for _ in range(rng.randint(1, 6))))
