"""Whether the number in a name is a step, where no config says that steps are there.

Any numbered file would do otherwise: the parts of a data set (`cache/0399.npy`) would prove
success, and a file that is named after the time of day would be progress in each attempt. So, in a
folder that was found:

* a time is no step: a date, or a Unix time, that is less than a year from now;
* where nothing commits the step, its name must say that it is a checkpoint (`model_100.npz`), or
  else the name of its folder or of the folder above;
* a name that only says what it counts (`step_100.npz`) will do, but not for a single array
  (`.npy`), nor where the name or a folder speaks of data (`cache/step_0001.npz`).

All functions are pure.
"""

from __future__ import annotations

import re
from pathlib import Path

from supervisor.config.usual_names import is_time, speaks_of_data
from supervisor.protocol.epochs import EPOCH

_SAVED = "ckpt|chkpt|check_?point|snapshot|save"
_SAYS_WHAT = re.compile(rf"(?i){_SAVED}|state|model|weight|param|(?<![a-z])(net|cp)(?![a-z])")
"""What the name of a checkpoint says."""
_COUNTS = re.compile(rf"(?i)step|iter|update|(?<![a-z])({EPOCH})(?![a-z])")
"""What a name says that only tells what it counts."""
_FOLDER_SAYS = re.compile(rf"(?i){_SAVED}")
"""What the name of a folder of steps says."""
_ONE_ARRAY = ".npy"


def may_be_a_step(place: Path, step: int, *, is_marked: bool, now: float) -> bool:
    """Whether `step`, parsed from the name of `place`, may be a step at the Unix time `now`.
    `is_marked`: the program has committed it, as its layout says."""
    if is_time(step, now):
        return False
    return is_marked or _says_checkpoint(place)


def _says_checkpoint(place: Path) -> bool:
    above = (place.parent.name, place.parent.parent.name)
    if _SAYS_WHAT.search(place.name) or any(map(_FOLDER_SAYS.search, above)):
        return True
    is_data = place.suffix == _ONE_ARRAY or speaks_of_data(place)
    return not is_data and _COUNTS.search(place.name) is not None
