"""Finds a bug that a test has planted."""

from __future__ import annotations

import warnings

from tests.simulation.__main__ import play
from tests.simulation.simulation import Result


def first_violation(pinned: int, within: int) -> Result:
    """Return the result of the seed `pinned`, or, if that one finds nothing, of the first of
    `within` seeds that does. Then it warns: a search can take a minute of CPU."""
    if (result := play(pinned)).violation:
        return result
    found = next((result for result in map(play, range(within)) if result.violation), None)
    assert found is not None, f"none of {within} seeds finds it"
    warnings.warn(f"seed {pinned} finds nothing now: pin seed {found.seed}", stacklevel=2)
    return found
