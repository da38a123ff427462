"""The names of steps that count where the config describes no layout and names no directory.

A time is no step there: a file that is named after the time of day would be progress in each
attempt. And where others may save in the same folder, only the kinds of names count that the
program was seen to write (`seed1_step_#.pkl`).
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from supervisor.protocol.checkpoint_layouts import step_of, step_place
from supervisor.protocol.epochs import EPOCH

_TEMPORARY = re.compile(r"\.orbax-checkpoint-tmp.*|\.(tmp|temp|part|partial)$")
_DIGITS = re.compile(r"[0-9]+")
_COUNTED = re.compile(rf"(?i)((?<![a-z])(?:(?:step|iter|iteration|update)s?|{EPOCH})[_.=-]?)[0-9]+")
"""A number before the step that rises with it: `epoch=3-step=100`."""
_AFTER = re.compile(r"([A-Za-z]*)[_=-]?[0-9]+(?:\.[0-9]+)*")
"""A number after the step, with the word before it."""
_MEASURED = re.compile(r"(?i)loss|acc|val|ppl|perp|score|bleu|auc|err|metric|reward|mse|mae|psnr")
"""What a word says whose number after the step varies (`step5_loss0.3`). A number after any other
word is the same for a whole run (`step5_seed1`); one without a word varies."""
_IS_DATA = re.compile(
    r"(?i)(?<![a-z])(data(sets?)?|caches?|shards?|batch(es)?|chunks?|tokens?|tokeni[sz]ed|corpus|"
    r"samples?|examples?|features?|embeddings?|activations?|rollouts?|trajector(y|ies)|replay|"
    r"buffers?|predictions?|images?|figures?|plots?|metrics?)(?![a-z])"
)
"""What the names of data and of their folders say."""
_MANY = 4
"""So many kinds of names that differ in numbers alone are one: the program varies the number."""
_YEAR = 366 * 86400.0
_UNITS = (1.0, 1e3, 1e6)
"""Of a Unix time: seconds, milliseconds, microseconds. Nanoseconds are too long for a step."""
_CLOCKS = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""Formats of a date, by the number of digits."""


@dataclass(frozen=True, slots=True)
class UsualNames:
    """See `protocol.committed.OwnNames`."""

    kinds: tuple[str, ...] = ()
    """The kinds of names that count (`kind_of`); empty: all do."""

    @property
    def marker(self) -> str | None:
        """See `OwnNames`."""
        return None

    @property
    def is_described(self) -> bool:
        """See `OwnNames`."""
        return False

    def step_of(self, name: str) -> int | None:
        """See `OwnNames`."""
        step = step_of(name)
        if step is None or (self.kinds and not is_of(name, self.kinds)):
            return None
        return None if is_time(step, time.time()) else step


def final_name(name: str) -> str:
    """Returns the name of a step that is being written, as it will be then."""
    return _TEMPORARY.sub("", name)


def kind_of(name: str) -> str:
    """Returns the name of a step with `#` for the step and for what varies with it: the same for
    all steps of a program, and another for those of a run with another seed."""
    name = final_name(name)
    place = step_place(name)
    if place is None:
        return unnumbered(name)
    before, after = name[: place[0]], _COUNTED.sub(r"\1#", name[place[1] :])
    return _COUNTED.sub(r"\1#", before) + "#" + _AFTER.sub(_after, after)


def _after(number: re.Match[str]) -> str:
    varies = not number[1] or _MEASURED.search(number[1])
    return unnumbered(number[0]) if varies else number[0]


def unnumbered(name: str) -> str:
    """Returns a name with `#` for each number."""
    return _DIGITS.sub("#", name)


def kinds_together(kinds: Iterable[str]) -> tuple[str, ...]:
    """Returns the `kinds` of names that a program writes in one folder, in their order by text. Of
    many that differ in a number alone, the program varies the number, and it becomes `#` too."""
    alike: defaultdict[str, set[str]] = defaultdict(set)
    for kind in kinds:
        alike[unnumbered(kind)].add(kind)
    together = ({each} if len(of_it) >= _MANY else of_it for each, of_it in alike.items())
    return tuple(sorted(kind for of_it in together for kind in of_it))


def is_of(name: str, kinds: Iterable[str]) -> bool:
    """Whether the name of a step is of one of the `kinds`."""
    return _pattern(tuple(kinds)).fullmatch(final_name(name)) is not None


@lru_cache(maxsize=64)
def _pattern(kinds: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(kind).replace(r"\#", r"(?:[0-9]+|\#)") for kind in kinds))


def speaks_of_data(place: Path) -> bool:
    """Whether the name of a file, of its folder or of the folder above says that it holds data."""
    names = (place.name, place.parent.name, place.parent.parent.name)
    return any(map(_IS_DATA.search, names))


def is_time(number: int, now: float) -> bool:
    """Whether `number` is a date or a Unix time that is less than a year from `now`."""
    if any(abs(number / unit - now) < _YEAR for unit in _UNITS):
        return True
    text = str(number)
    if len(text) not in _CLOCKS:
        return False
    try:
        at = datetime.strptime(text, _CLOCKS[len(text)]).replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs(at.timestamp() - now) < _YEAR
