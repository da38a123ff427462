"""The byte-level tokenizer: needs no vocabulary file, knows every language, loses nothing.

A token is a byte of UTF-8; one special token ends a document, so that documents can be packed into
one stream.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from supervisor.config.training.sections import END_OF_DOCUMENT

Tokens = npt.NDArray[np.uint16]


def encode(document: bytes | str) -> Tokens:
    """The tokens of `document`, [bytes], without the end. Lone surrogates become `?`."""
    data = document.encode("utf-8", "replace") if isinstance(document, str) else document
    return np.frombuffer(data, np.uint8).astype(np.uint16)


def pack(documents: Iterable[bytes | str]) -> Tokens:
    """One stream of tokens: every document of `documents` in order, each followed by its end."""
    end = np.array([END_OF_DOCUMENT], np.uint16)
    parts = [part for document in documents for part in (encode(document), end)]
    return np.concatenate(parts) if parts else end[:0]


def decode(tokens: Iterable[int]) -> str:
    """The text of `tokens` up to the first end; bytes that are no UTF-8 become U+FFFD."""
    data = bytearray()
    for token in tokens:
        if token == END_OF_DOCUMENT:
            break
        data.append(token)
    return data.decode("utf-8", "replace")
