"""The documents of data files: text, or token ids that somebody else's tokenizer made.

Without jax or grain: the configuration check looks at the first record of each file. A model takes
a token id outside its vocabulary without a word and trains on nonsense (or NaN), so what was not
tokenised here is checked here, while it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.schema import DataloaderConfig
from trainer.sources import matching_files
from trainer.tokenizer import pack

Stream = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
"""Token ids in as little memory as the vocabulary allows."""


class DataError(ValueError):
    """Data that cannot be trained on; the text says which file, which record and why."""


def read_stream(config: DataloaderConfig, vocab_size: int) -> Stream:
    """All the tokens of `config`, one document after the other.

    Raises:
        DataError: a record without the field that is asked for, or with ids out of the vocabulary.
    """
    files = [file for pattern in config.paths for file in matching_files(pattern)]
    if config.tokens_field is None:
        return pack(text for file in files for text in _texts(file, config.text_field))
    records = (ids for file in files for ids in _ids(file, config.tokens_field, vocab_size))
    return _joined(records, vocab_size)


def first_records(config: DataloaderConfig, vocab_size: int) -> None:
    """Look at the first record of each file, to see that it is of the form that is asked for.

    Raises:
        DataError: as `read_stream`.
        OSError: a file cannot be read.
    """
    for file in (file for pattern in config.paths for file in matching_files(pattern)):
        if config.tokens_field is not None:
            next(_ids(file, config.tokens_field, vocab_size), None)
        elif file.suffix == ".jsonl":
            next(_texts(file, config.text_field), None)
        else:
            file.open("rb").close()


def _texts(file: Path, field: str) -> Iterator[bytes | str]:
    if file.suffix != ".jsonl":
        yield file.read_bytes()
        return
    for where, record in _lines(file):
        text = record.get(field)
        if not isinstance(text, str):
            raise DataError(f"{where}: no text in the field {field!r}; set text_field")
        yield text


def _ids(file: Path, field: str, vocab_size: int) -> Iterator[npt.NDArray[np.int64]]:
    for where, record in _lines(file):
        if record.get(field) == []:
            continue
        try:
            ids = np.asarray(record.get(field))
        except ValueError:  # lists of different lengths inside
            ids = np.empty(0, object)
        if ids.ndim != 1 or ids.dtype.kind != "i":
            raise DataError(f"{where}: no token ids in the field {field!r}; set tokens_field")
        outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
        if len(outside):
            position = int(outside[0])
            raise DataError(
                f"{where}: token id {ids[position]} at position {position} is outside the "
                f"vocabulary: trainer.init.model.vocab_size is {vocab_size}. Set it to that of the "
                "tokenizer that made the data, or mend the record"
            )
        yield ids


def _lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a JSONL file, each with where it stands."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{file}:{number}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise DataError(f"{where}: not JSON: {error}") from None
            yield where, record if isinstance(record, dict) else {}


def _joined(records: Iterable[npt.NDArray[np.int64]], vocab_size: int) -> Stream:
    kind: Any = np.uint16 if vocab_size <= 2**16 else np.int32
    parts = [ids.astype(kind) for ids in records]
    return np.concatenate(parts) if parts else np.empty(0, kind)
