"""How the chips of one TPU host are shared out among processes, as libtpu wants to be told.

The bounds are those of jax's own tests of several processes (`jax/_src/test_multiprocess.py` of
jax 0.10.2); nowhere else are they written down.
"""

from __future__ import annotations

_BOUNDS: dict[tuple[int, int], tuple[str, str]] = {
    (1, 1): ("1,1,1", "1,1,1"),
    (2, 2): ("1,1,1", "1,2,1"),
    (4, 1): ("2,2,1", "1,1,1"),
    (4, 2): ("2,1,1", "1,2,1"),
    (4, 4): ("1,1,1", "2,2,1"),
    (8, 1): ("4,2,1", "1,1,1"),
    (8, 4): ("1,2,1", "2,2,1"),
    (8, 8): ("1,1,1", "2,4,1"),
}
"""By all chips and those of one process: how the processes lie, and the chips of each."""


def bounds(chips: int, chips_per_process: int) -> tuple[str, str] | None:
    """`TPU_PROCESS_BOUNDS` and `TPU_CHIPS_PER_PROCESS_BOUNDS`; None: it cannot be shared so."""
    return _BOUNDS.get((chips, chips_per_process))


def shares(chips: int) -> list[int]:
    """Among how many processes so many chips can be shared."""
    return sorted(chips // each for whole, each in _BOUNDS if whole == chips)
