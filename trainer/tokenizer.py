"""Tokenizers, and the one that needs no files: it is byte-level, works for every language, and
loses nothing.

A token of it is a byte of UTF-8. One special token marks the end of a document, so that documents
can be packed into one stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from supervisor.config.training.sections import END_OF_DOCUMENT, VOCABULARY_SIZE

Tokens = npt.NDArray[np.uint16]
Ids = npt.NDArray[np.int32]


class Tokenizer(Protocol):
    """Makes token ids of texts."""

    @property
    def identity(self) -> str:
        """Equal for tokenizers that give the same ids."""
        ...

    @property
    def begin(self) -> tuple[int, ...]:
        """The ids that come before a document."""
        ...

    @property
    def end(self) -> int:
        """The id that comes after a document."""
        ...

    @property
    def size(self) -> int:
        """How many ids there are, from 0 on."""
        ...

    def encode_all(self, texts: Sequence[bytes | str]) -> list[Ids]:
        """Return the ids of each text, without those before and after a document."""
        ...

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, as far as it can be shown."""
        ...


class ByteTokenizer:
    """The functions of this module, as a `Tokenizer`. The end of the document before comes before
    each."""

    identity = "bytes"
    begin = (END_OF_DOCUMENT,)
    end = END_OF_DOCUMENT
    size = VOCABULARY_SIZE

    def encode_all(self, texts: Sequence[bytes | str]) -> list[Ids]:
        """See `Tokenizer`."""
        return [encode(text).astype(np.int32) for text in texts]

    def text(self, ids: Iterable[int]) -> str:
        """See `Tokenizer`. Ends of documents are shown as `<end>`."""
        shown = bytearray()
        for one in ids:
            shown += b"<end>" if one == END_OF_DOCUMENT else bytes((one,))
        return shown.decode("utf-8", "replace")


BYTES: Tokenizer = ByteTokenizer()


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
