"""Truncates text at a word boundary, so that a secret is never split.

A text that is redacted after it was truncated must not contain half a secret: redaction finds whole
secrets only. Code that can redact first does not need this.
"""

from __future__ import annotations

_MAX_WORD = 512
"""Longest word, in characters, that is left out whole. A longer one is no secret, and is cut."""


def keep_beginning(text: str, limit: int) -> str:
    """Return the first `limit` characters of `text`, truncated at a word boundary."""
    if len(text) <= limit:
        return text
    return text[: limit - _rest_of_word(text[: limit + 1][::-1])]


def keep_end(text: str, limit: int) -> str:
    """Return the last `limit` characters of `text`, beginning at a word boundary."""
    if len(text) <= limit:
        return text
    return text[len(text) - limit + _rest_of_word(text[-limit - 1 :]) :]


def _rest_of_word(text: str) -> int:
    """Count the characters after the first one of `text` that belong to the same word; 0 if the
    word is longer than a secret."""
    length = len(text[: _MAX_WORD + 1].split(maxsplit=1)[0]) if text[:1].strip() else 0
    return max(0, length - 1) if length <= _MAX_WORD else 0
