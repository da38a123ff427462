"""Puts whole examples into rows of one length: none is cut, and none sees another.

The first token of each example is marked (`objective.marked_first`), which tells the model where
the next document begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from trainer.objective import marked_first
from trainer.tokenizer import Ids

_OPEN_ROWS = 16
"""Rows that wait for more. With more of them, rows are fuller, and examples further from their
place in the file."""


Example = tuple[Ids, str]
"""The tokens of an example, and its place in the data."""


def rows_of(
    examples: Iterable[Example], width: int, padding: int
) -> Iterator[tuple[Ids, list[str]]]:
    """Yield rows [width] of whole `examples`, which are not longer, each with the places of its
    examples. What is left of a row is filled with `padding`, an id that is not learned."""
    waiting: list[list[Example]] = []
    for example in examples:
        fitting = (row for row in waiting if _size(row) + len(example[0]) <= width)
        row = next(fitting, None)
        if row is None:
            waiting.append(row := [])
        row.append(example)
        if len(waiting) > _OPEN_ROWS:
            sizes = [_size(row) for row in waiting]
            yield _joined(waiting.pop(sizes.index(max(sizes))), width, padding)
    yield from (_joined(row, width, padding) for row in waiting)


def _size(row: list[Example]) -> int:
    return sum(len(ids) for ids, _ in row)


def _joined(row: list[Example], width: int, padding: int) -> tuple[Ids, list[str]]:
    left, parts = width - _size(row), [ids for ids, _ in row]
    if left:
        parts.append(np.full(left, padding, np.int32))
    return np.concatenate([marked_first(part) for part in parts]), [where for _, where in row]
