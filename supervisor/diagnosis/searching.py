"""Searches fast for regular expressions that rarely match.

A hundred rules are tried on each error, of which one or two match, and several expressions on every
line of an output. Most of them contain plain strings without which they cannot match. To look for
those takes a tenth of the time of a search that has many alternatives and ignores case.
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
        """Returns the first match in `text`; None: there is none."""
        return self.search_in(text, lowered(text))

    def search_in(self, text: str, lowered: str | None) -> re.Match[str] | None:
        """Like `search`, for a text that is searched many times: `lowered` is `lowered(text)`."""
        if lowered is not None and self._needed:
            for each in self._needed:  # `any` with a generator takes twice the time
                if each in lowered:
                    break
            else:
                return None
        return self._compiled.search(text)


def lowered(text: str) -> str | None:
    """Returns `text` in lower case; None if it is not ASCII.

    Without case, other letters may match letters that are not their lower case.
    """
    return text.lower() if text.isascii() else None


def needed(source: str) -> frozenset[str]:
    """Returns strings in lower case, one of which is in each lowered ASCII text that the regular
    expression matches; empty: none are known."""
    return _needed_by_sequence(_parser.parse(source))


def _needed_by_sequence(items: Iterable[tuple[Any, Any]]) -> frozenset[str]:
    """Returns the needed strings of a sequence of items: the longest ones, which are the rarest."""
    found, run = [], ""
    for kind, value in items:
        letter = _letter(kind, value)
        run += letter
        if not letter:
            found += [_needed_by_run(run), _needed_by_item(kind, value)]
            run = ""
    return max((*found, _needed_by_run(run)), key=_worth)


def _needed_by_run(run: str) -> frozenset[str]:
    return frozenset({run}) if run else frozenset()


def _worth(strings: frozenset[str]) -> tuple[int, int]:
    return min(map(len, strings), default=0), -len(strings)


def _letter(kind: Any, value: Any) -> str:
    """Returns the one character, in lower case, that the item matches; empty: not one character."""
    codes = [value] if kind is op.LITERAL else []
    if kind is op.IN and all(each is op.LITERAL for each, _ in value):
        codes = [code for _, code in value]
    letters = {chr(code).lower() for code in codes}
    letter = letters.pop() if len(letters) == 1 else ""
    return letter if letter.isascii() else ""


def _needed_by_item(kind: Any, value: Any) -> frozenset[str]:
    """Returns the needed strings of an item other than a single character."""
    match kind, value:
        case op.SUBPATTERN, (_, _, _, items):
            return _needed_by_sequence(items)
        case ((op.MAX_REPEAT | op.MIN_REPEAT), (least, _, items)) if least > 0:
            return _needed_by_sequence(items)
        case op.BRANCH, (_, branches):
            each = [_needed_by_sequence(branch) for branch in branches]
            return frozenset().union(*each) if all(each) else frozenset()
    return frozenset()
