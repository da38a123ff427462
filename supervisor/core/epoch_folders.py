"""Programs that begin to count anew in a folder for each epoch: `out/epoch_1/step_5`.

The steps of such a program fall with each epoch, although it goes further. So a folder of a later
epoch is progress too. Only a word that counts epochs says so: a program that begins again from
nothing may make a new folder (`version_1`, `run_2`) each time.
"""

from __future__ import annotations

import re

_EPOCH = re.compile(r"(?i)(?<![a-z])(epochs?|ep|rounds?)([_.=-]?)(\d{1,9})")


def is_of_a_later_epoch(directory: str, earlier: str | None) -> bool:
    """Whether two paths differ in the number of an epoch alone, and that of `earlier` is lower."""
    if earlier is None or _EPOCH.sub(r"\1\2", directory) != _EPOCH.sub(r"\1\2", earlier):
        return False
    return _epochs(directory) > _epochs(earlier)


def _epochs(path: str) -> list[int]:
    return [int(number) for _, _, number in _EPOCH.findall(path)]
