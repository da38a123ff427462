"""How the chips of one TPU host are shared out among processes, as libtpu wants to be told.

Only what a source shows to work is offered, and each entry names its source: the bounds are
documented nowhere. A process with the whole host is told nothing, and libtpu takes its defaults, as
under Ray. Sources: jax `conftest.py` (its nightly tests run one process a chip on v4-8, v5e-8,
v6e-8 and v7x-8) and `jax/_src/test_multiprocess.py` at cec06d1; Ray
`python/ray/_private/accelerators/tpu.py`; the gist f82ba45d2445bb19d53545538754f9a3 by jax's author
of TPU support (v2 to v4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the processes lie (`TPU_PROCESS_BOUNDS`), the chips of each
    (`TPU_CHIPS_PER_PROCESS_BOUNDS`), and by which source that works."""

    processes: str
    chips: str
    source: str


_ONE = Arrangement("1,1,1", "1,1,1", "jax conftest.py (JAX_ENABLE_TPU_XDIST), Ray tpu.py")
_TWO = Arrangement("1,1,1", "1,2,1", "Ray tpu.py (any generation); the gist")
_FOUR = Arrangement("1,1,1", "2,2,1", "jax test_multiprocess.py: 4 chips, 1 process; the gist")
_JAX = "jax test_multiprocess.py: "
_SINGLES = Arrangement("2,2,1", "1,1,1", _JAX + "4 chips, 4 processes, as its tests run them")
_PAIRS = Arrangement("2,1,1", "1,2,1", _JAX + "4 chips, 2 processes")
_HALVES = Arrangement("1,2,1", "2,2,1", _JAX + "8 chips, 2 processes: for v6e, and not for v5e")

_ALONE = {(1, 1): _ONE, (2, 2): _TWO, (4, 4): _FOUR}
"""One process with a part of a host: bounds that are the same for all generations."""
_ON_FOUR = {(4, 1): _SINGLES, (4, 2): _PAIRS}

Arrangements = Mapping[tuple[int, int], Arrangement]
"""By all chips that are used, and those of one process."""

# jax's bounds for 8 processes, 4,2,1, name no generation, and v5e and v6e hosts are 2x4: left out.
ARRANGEMENTS: Mapping[str, Arrangements] = {
    "v4": _ALONE,
    "v5e": _ALONE,
    "v5p": _ALONE | _ON_FOUR,
    "v6e": _ALONE | _ON_FOUR | {(8, 4): _HALVES},
    "tpu7x": _ALONE | _ON_FOUR,
}

_SKIPPED = (
    "jax skips its own tests of several processes on a {} in the cloud (test_multiprocess.py)"
)
WHY_NOT: Mapping[str, str] = {
    "v4": _SKIPPED.format("v4"),
    "v5e": _SKIPPED.format("v5e"),
}
"""Why several processes cannot have what is missing above, where more is known than that."""
_NO_SOURCE = "no source shows bounds for that"
NO_TYPE = "bounds differ from one TPU generation to another: name the type in init.devices"


def arrangement(generation: str | None, chips: int, each: int) -> Arrangement | None:
    """How processes with `each` chips use `chips` of one host; None: nobody has shown that they
    can. Of a generation that is not named, only what is true of all is known."""
    known = _ALONE if generation is None else ARRANGEMENTS[generation]
    return known.get((chips, each))


def why_not(generation: str | None) -> str:
    """Why there is no `arrangement` for several processes."""
    return NO_TYPE if generation is None else WHY_NOT.get(generation, _NO_SOURCE)


def shares(generation: str | None, chips: int) -> list[int]:
    """Among how many processes so many chips, all of a host, can be shared."""
    known = {} if generation is None else ARRANGEMENTS[generation]
    return sorted({1} | {chips // each for whole, each in known if whole == chips})
