"""The regular expressions of a config, searched for in bounded time.

Python's `re` holds the interpreter's lock while it searches, for ever in a bad case: a pattern such
as `(?:a+)+ ` would make the supervisor deaf to signals. The library `regex` gives the lock back and
stops in time. It knows more syntax than `re`: a pattern must be one of `re`, and means the same.
"""

from __future__ import annotations

import re
from typing import Any

MAX_SEARCH = 0.25
"""Seconds of CPU time for one search: a search that ends takes a thousandth of it."""

_SHOWN = 120
"""Characters of a text that a person is shown."""
_TOKEN = re.compile(r"(?s)\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?!\d+\}|\d*,\d*\})")
"""An escape, a set, or a brace that begins no repetition: a part of the text for `re`, the bounds
of a fuzzy match (`{e<=1}`) for `regex`."""
_POSIX = re.compile(r"\[:\^?[A-Za-z]+:\]")


class SlowPatternError(Exception):
    """The search for `source` was given up: it takes too long in this text."""

    def __init__(self, source: str, text: str) -> None:
        # Half a secret would not be recognised as one.
        shown = text if len(text) <= _SHOWN else text[:_SHOWN].rpartition(" ")[0]
        super().__init__(f"the pattern {source!r} takes too long in text that begins {shown!r}")
        self.source = source


class Pattern:
    """A regular expression in the syntax of `re`."""

    def __init__(self, source: str) -> None:
        """ValueError says what is wrong with `source`."""
        import regex  # 2 MB, only where a config has patterns

        if (found := _named_set(source)) is not None:
            raise ValueError(f"is not a regular expression: {found} is none of Python's re")
        try:
            self.groups = re.compile(source).groups
            self._compiled: Any = regex.compile(_without_fuzzy(source), regex.VERSION0)
        except (re.error, regex.error, OverflowError, RecursionError) as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        self.source = source

    def search(self, text: str, seconds: float = MAX_SEARCH) -> re.Match[str] | None:
        """The first match in `text`.

        Raises:
            SlowPatternError: it takes more than `seconds` of CPU time.
        """
        try:
            match: re.Match[str] | None = self._compiled.search(
                text, timeout=seconds, concurrent=True
            )
        except TimeoutError:
            raise SlowPatternError(self.source, text) from None
        return match


def _without_fuzzy(source: str) -> str:
    return _TOKEN.sub(lambda token: r"\{" if token[0] == "{" else token[0], source)


def _named_set(source: str) -> str | None:
    """A set such as `[:alpha:]`, which `re` takes for some letters and `regex` for a class."""
    for token in _TOKEN.finditer(source):
        if token[0].startswith("[") and (found := _POSIX.search(token[0], 1)) is not None:
            return found[0]
    return None
