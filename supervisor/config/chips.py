"""Among how many processes the chips of one TPU host can be shared, and how libtpu is told of it.

A process with the whole host is told nothing, and libtpu takes its defaults, as under Ray.
"""

from __future__ import annotations

from supervisor.config.generations import ALONE, GENERATIONS, Arrangement

_NO_TYPE = "bounds differ from one TPU generation to another: name the type in init.devices"


def arrangement(generation: str | None, chips: int, each: int) -> Arrangement | None:
    """How processes with `each` chips use `chips` of one host; None: nobody has shown that they
    can. Of a generation that is not named, only what is true of all is known."""
    known = ALONE if generation is None else GENERATIONS[generation].arrangements
    return known.get((chips, each))


def why_not(generation: str | None) -> str:
    """Why there is no `arrangement` for several processes."""
    return _NO_TYPE if generation is None else GENERATIONS[generation].why_not


def shares(generation: str | None, chips: int) -> list[int]:
    """Among how many processes so many chips, all of a host, can be shared."""
    known = {} if generation is None else GENERATIONS[generation].arrangements
    return sorted({1} | {chips // each for whole, each in known if whole == chips})
