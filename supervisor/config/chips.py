"""How several processes can share the chips of one TPU host, and what libtpu is told about it.

libtpu gets no bounds in a process that has the whole host: it uses its defaults then, as under Ray.
"""

from __future__ import annotations

from supervisor.config.generations import GENERATIONS, ONE_PROCESS, Arrangement

_NO_TYPE = "bounds differ from one TPU generation to another: name the type in init.devices"


def arrangement(generation: str | None, chips: int, each: int) -> Arrangement | None:
    """Returns how processes with `each` chips use `chips` chips of one host.

    None: no source shows that this works. `generation` may be None, if the config names no type:
    then only the arrangements are known that are the same for all generations.
    """
    known = ONE_PROCESS if generation is None else GENERATIONS[generation].arrangements
    return known.get((chips, each))


def why_not_shared(generation: str | None) -> str:
    """Returns why several processes have no `arrangement`, as a part of a sentence."""
    return _NO_TYPE if generation is None else GENERATIONS[generation].why_not_shared


def process_counts(generation: str | None, chips: int) -> list[int]:
    """Returns the numbers of processes that can share `chips` chips, in ascending order.

    `chips` are all chips of a host.
    """
    known = {} if generation is None else GENERATIONS[generation].arrangements
    return sorted({1} | {chips // each for whole, each in known if whole == chips})
