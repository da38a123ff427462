"""Searches for the regular expressions of a config, each in bounded time.

Python's `re` holds the interpreter lock while it searches. With a bad pattern, such as `(?:a+)+ `,
a search may never end, and the supervisor would not react to signals. The library `regex` releases
the lock and has a time limit. It has more syntax than `re`, so `Pattern` accepts only the syntax of
`re`, with the meaning that it has there.
"""

from __future__ import annotations

import re
from typing import Any

MAX_SEARCH = 0.25
"""Time limit of one search, in seconds of CPU time. A normal search takes a thousandth of it."""

_SHOWN = 120
"""How many characters of a text a message shows."""
_TOKEN = re.compile(r"(?s)\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?!\d+\}|\d*,\d*\})")
"""An escape, a set, or a brace that begins no repetition. For `re` such a brace is text; for
`regex` it begins a fuzzy match (`{e<=1}`)."""
_POSIX = re.compile(r"\[:\^?[A-Za-z]+:\]")


class SlowPatternError(Exception):
    """The search for the pattern `source` took too long in this text and was stopped."""

    def __init__(self, source: str, text: str) -> None:
        # The text is cut between words: the redactor does not recognise half a secret.
        shown = text if len(text) <= _SHOWN else text[:_SHOWN].rpartition(" ")[0]
        super().__init__(f"the pattern '{source}' takes too long in text that begins {shown!r}")
        self.source = source


class Pattern:
    """A regular expression in the syntax of `re`."""

    def __init__(self, source: str) -> None:
        """Compiles `source`. ValueError: it is no regular expression of `re`."""
        import regex  # needs 2 MB of memory, so only configs with patterns load it

        if (found := _named_set(source)) is not None:
            raise ValueError(f"is not a regular expression: Python's re has no {found}")
        try:
            self.groups = re.compile(source).groups
            self._compiled: Any = regex.compile(_without_fuzzy(source), regex.VERSION0)
        except (re.error, regex.error, OverflowError, RecursionError) as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        self.source = source

    def search(self, text: str, seconds: float = MAX_SEARCH) -> re.Match[str] | None:
        """Returns the first match in `text`; None: there is none.

        Raises:
            SlowPatternError: the search took more than `seconds` of CPU time.
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
    """Returns a set of `source` such as `[:alpha:]`; None: it has none.

    For `re` this is a set of some letters; for `regex` it is a class of characters.
    """
    for token in _TOKEN.finditer(source):
        if token[0].startswith("[") and (found := _POSIX.search(token[0], 1)) is not None:
            return found[0]
    return None
