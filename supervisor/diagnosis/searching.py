"""Searches for regular expressions that rarely match, where time counts.

An error is asked about by a hundred rules, of which one or two match, and every line of an output
by several expressions. Most of them hold plain strings without which they cannot match: looking for
those takes a tenth of the time of a search that has many alternatives and ignores the case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any


class Searched:
    """A regular expression that is searched only in texts that may match."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._needed = tuple(needed(source))

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self._source)

    def search(self, text: str) -> re.Match[str] | None:
        """The first match in `text`."""
        return self.search_in(text, lowered(text))

    def search_in(self, text: str, lowered: str | None) -> re.Match[str] | None:
        """The same, for who searches a text many times: `lowered` is `lowered(text)`."""
        if lowered is not None and self._needed:
            for each in self._needed:  # a generator takes twice the time
                if each in lowered:
                    break
            else:
                return None
        return self._compiled.search(text)


def lowered(text: str) -> str | None:
    """`text` in lower case; None where that is ambiguous: other letters than those of ASCII may
    match ones that are not their lower case."""
    return text.lower() if text.isascii() else None


def needed(source: str) -> frozenset[str]:
    """Strings in lower case, one of which is in each ASCII text that the regular expression
    matches; empty: none are known."""
    return _of_sequence(_parser.parse(source))


def _of_sequence(items: Iterable[tuple[Any, Any]]) -> frozenset[str]:
    """The best of what the items need that follow on one another."""
    found, run = [], ""
    for kind, value in items:
        letter = _letter(kind, value)
        run += letter
        if not letter:
            found += [_of_run(run), _of_item(kind, value)]
            run = ""
    return max((*found, _of_run(run)), key=_worth)


def _of_run(run: str) -> frozenset[str]:
    return frozenset({run}) if run else frozenset()


def _worth(strings: frozenset[str]) -> tuple[int, int]:
    return min(map(len, strings), default=0), -len(strings)


def _letter(kind: Any, value: Any) -> str:
    """The one character that the item is, whatever its case; empty: it is none."""
    codes = [value] if kind is op.LITERAL else []
    if kind is op.IN and all(each is op.LITERAL for each, _ in value):
        codes = [code for _, code in value]
    letters = {chr(code).lower() for code in codes}
    letter = letters.pop() if len(letters) == 1 else ""
    return letter if letter.isascii() else ""


def _of_item(kind: Any, value: Any) -> frozenset[str]:
    """What an item needs that is more than a character."""
    match kind, value:
        case op.SUBPATTERN, (_, _, _, items):
            return _of_sequence(items)
        case ((op.MAX_REPEAT | op.MIN_REPEAT), (least, _, items)) if least > 0:
            return _of_sequence(items)
        case op.BRANCH, (_, branches):
            each = [_of_sequence(branch) for branch in branches]
            return frozenset().union(*each) if all(each) else frozenset()
    return frozenset()
