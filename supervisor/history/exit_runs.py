"""Workers' ends as the journal keeps them: one object for workers in a row that ended alike.

Of thousands of workers nearly all end alike, and their ends are part of several records of an
attempt. An object for each would be most of the journal. A worker between others that ended in
another way keeps an object of its own, as in older records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

_RANK, _RANKS = "rank", "ranks"
_MOST = 1 << 20
"""More ranks than these are a damaged record, which must not fill the memory."""
_RANGE = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})?")
_SHOWN = 20
Exits = list[dict[str, Any]]
"""Workers' ends as JSON objects, each with its `rank`, in the order in which they were seen."""


def packed(exits: Exits) -> Exits:
    """Returns the ends with one object for several in a row that are alike but for their rank.

    Such an object has `ranks` in place of `rank`: numbers and ranges, such as "0-4095,7", in order.
    """
    return [one for _, alike in groupby(exits, _alike) for one in _in_one(list(alike))]


def unpacked(body: Sequence[Any], refuse: Callable[[str], Exception]) -> list[Any]:
    """Returns the objects that `packed` was given; what is no packed object is left as it is.

    Raises:
        Exception: `ranks` is not in that form; `refuse` makes it from the text.
    """
    return [one for each in body for one in _each(each, refuse)]


def _alike(one: dict[str, Any]) -> dict[str, Any]:
    """Returns what ends must have in common to make up one object; an impossible rank is part of
    it."""
    return _without_rank(one) if 0 <= one[_RANK] < _MOST else one


def _without_rank(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != _RANK}


def _in_one(alike: Exits) -> Exits:
    first = alike[0]
    if len(alike) == 1 or _RANK in _alike(first):
        return alike
    return [{_RANKS: _ranges([each[_RANK] for each in alike]), **_without_rank(first)}]


def _ranges(ranks: list[int]) -> str:
    told = []
    for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        (_, first), *rest = run
        told.append(f"{first}-{rest[-1][1]}" if rest else str(first))
    return ",".join(told)


def _each(body: Any, refuse: Callable[[str], Exception]) -> Iterator[Any]:
    if not (isinstance(body, dict) and _RANKS in body):
        yield body
        return
    alike = {name: value for name, value in body.items() if name != _RANKS}
    for rank in _ranks(body[_RANKS], refuse):
        yield {_RANK: rank, **alike}


def _ranks(told: Any, refuse: Callable[[str], Exception]) -> Iterator[int]:
    if not isinstance(told, str):
        raise refuse("is no text of ranks")
    left = _MOST
    for part in told.split(","):
        if _RANGE.fullmatch(part) is None:
            raise refuse(f"has {part[:_SHOWN]!r}, which is no rank and no range")
        first, _, last = part.partition("-")
        ranks = range(int(first), int(last or first) + 1)
        left -= len(ranks)
        if left < 0:
            raise refuse(f"has more than {_MOST} ranks")
        yield from ranks
