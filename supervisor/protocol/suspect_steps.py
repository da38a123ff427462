"""Steps that may have been computed wrongly, in the words of a `SilentCorruptionError`."""

from __future__ import annotations

import re

_SUSPECT = re.compile(r"Steps (\d+) to (\d+) are suspect")
_ONE = re.compile(r"step (\d+): .*The step before was right")


def in_words(first: int, last: int) -> str:
    """Returns a sentence on the steps from `first` to `last`, the one that a check has found wrong:
    nothing shows the others to be right."""
    if first == last:
        return "The step before was right"
    return f"Steps {first} to {last} are suspect: nothing was checked since"


def suspect_steps(message: str) -> range:
    """Returns the steps that an error `message` with such a sentence, and with `step LAST:`, calls
    suspect; empty: it has none."""
    if found := _SUSPECT.search(message):
        return range(int(found[1]), int(found[2]) + 1)
    if found := _ONE.search(message):
        return range(int(found[1]), int(found[1]) + 1)
    return range(0)
