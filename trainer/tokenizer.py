"""The byte-level tokenizer: needs no vocabulary file, works for every language, loses nothing.

A token is a byte of UTF-8. One special token marks the end of a document, so that documents can be
packed into one stream.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from supervisor.config.training.sections import END_OF_DOCUMENT

Tokens = npt.NDArray[np.uint16]


def encode(document: bytes | str) -> Tokens:
    """Return the tokens of `document`, [bytes], without the end token. Lone surrogates become
    `?`."""
    data = document.encode("utf-8", "replace") if isinstance(document, str) else document
    return np.frombuffer(data, np.uint8).astype(np.uint16)


def pack(documents: Iterable[bytes | str]) -> Tokens:
    """Return one stream of tokens: all `documents` in order, each followed by the end token."""
    end = np.array([END_OF_DOCUMENT], np.uint16)
    parts = [part for document in documents for part in (encode(document), end)]
    return np.concatenate(parts) if parts else end[:0]


def decode(tokens: Iterable[int]) -> str:
    """Return the text of `tokens` up to the first end token; invalid UTF-8 becomes U+FFFD."""
    data = bytearray()
    for token in tokens:
        if token == END_OF_DOCUMENT:
            break
        data.append(token)
    return data.decode("utf-8", "replace")
