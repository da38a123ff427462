"""Shortens a text of unknown content without cutting a secret in two.

Whoever redacts a text later knows a secret only as a whole. So a word that would be cut is left
out. Whoever can redact the text first needs none of this.
"""

from __future__ import annotations

_MAX_WORD = 512
"""Characters. Where more than these would be left out, the word is cut: it is no secret."""


def beginning(text: str, limit: int) -> str:
    """The first `limit` characters of `text`, less the word that would be cut."""
    if len(text) <= limit:
        return text
    return text[: limit - _rest_of_word(text[: limit + 1][::-1])]


def end(text: str, limit: int) -> str:
    """The last `limit` characters of `text`, less the word that would be cut."""
    if len(text) <= limit:
        return text
    return text[len(text) - limit + _rest_of_word(text[-limit - 1 :]) :]


def _rest_of_word(text: str) -> int:
    """How many characters after the first one of `text` belong to the same word; 0 where these are
    more than a secret has."""
    length = len(text[: _MAX_WORD + 1].split(maxsplit=1)[0]) if text[:1].strip() else 0
    return max(0, length - 1) if length <= _MAX_WORD else 0
