"""Dangers that only some worlds have. Each is drawn from a random stream of its own, so that a new
danger does not change the histories that it does not touch."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from random import Random


def random_stream(seed: int, name: str) -> Random:
    """Return the random stream `name` of the history of `seed`."""
    return Random(f"{seed} {name}")


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which the disk is full, or cannot be reached."""

    begin: float
    end: float
    is_full: bool
    takes_little: bool
    """Whether small things can still be written to it: a folder, a record, a line."""
    deletions: float
    """How many attempts must lose their output until a full disk has room again."""


@dataclass(frozen=True, slots=True)
class Hazards:
    """The hazards in the world of one seed."""

    prefetches: bool = False
    """The job compiles ahead for the rungs next to its own."""
    guard_dies: tuple[float, ...] = ()
    """When somebody kills the guard process; empty: never."""
    busy_chips: bool = False
    """The job runs on a TPU, and chips may stay open after a worker's death."""
    outages: tuple[Outage, ...] = ()
    """When the disk of model_dir fails."""


NO_HAZARDS = Hazards()


def draw_hazards(seed: int, benign: float) -> Hazards:
    """Draw the hazards in the world of `seed`, in which nothing goes wrong after the time
    `benign`."""
    return Hazards(
        prefetches=random_stream(seed, "prefetch").random() < 0.7,
        guard_dies=_some_moments(random_stream(seed, "guard"), benign),
        busy_chips=random_stream(seed, "chips").random() < 0.5,
        outages=_outages(random_stream(seed, "disk"), benign),
    )


def _some_moments(rng: Random, until: float) -> tuple[float, ...]:
    """Draw a few times in every third world, none in the others."""
    if rng.random() > 1 / 3:
        return ()
    return tuple(sorted(rng.uniform(0.0, until) for _ in range(rng.randint(1, 6))))


def _outages(rng: Random, until: float) -> tuple[Outage, ...]:
    found = []
    for begin in _some_moments(rng, until):
        end = min(until, begin + rng.choice((3.0, 30.0, 300.0)) * rng.random())
        is_full = rng.random() < 0.6
        deletions = rng.choice((1, 2, 3, inf)) if is_full else inf
        takes_little = is_full and rng.random() < 0.5
        found.append(Outage(begin, end, is_full, takes_little, deletions))
    return tuple(found)
