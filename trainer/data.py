"""The data pipeline: files to a stream of tokens, windows of it, shuffled global batches.

Every worker reads whole global batches and puts its own part of them on its devices, so neither the
content of a batch nor the position in the data depends on how many devices or workers there are:
the position is the number of batches read.
"""

# mypy: disable-error-code="attr-defined,name-defined"
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
import numpy.typing as npt

from trainer.config import DataloaderConfig
from trainer.sources import matching_files
from trainer.tokenizer import Tokens, pack

Batch = npt.NDArray[np.int32]
"""Token ids [global batch, sequence length + 1]: inputs and, one further, their targets."""

_READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)


class DataError(ValueError):
    """Data that cannot be trained on; the text says which file and why."""


class Windows:
    """A stream of tokens as a random-access source of windows [length + 1].

    A window starts at the last token of the one before: every token is a target once.
    """

    def __init__(self, tokens: Tokens, length: int) -> None:
        self._tokens = tokens
        self._length = length
        if len(self) == 0:
            raise DataError(f"{len(tokens)} tokens of data do not fill one window of {length + 1}")

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._length)

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        start = index * self._length
        return self._tokens[start : start + self._length + 1].astype(np.int32)


def read_windows(config: DataloaderConfig) -> Windows:
    """All the data of `config`, in memory: two bytes a token.

    Raises:
        DataError: a line of a JSONL file without the text, or too little data.
    """
    files = [file for pattern in config.paths for file in matching_files(pattern)]
    documents = (text for file in files for text in _documents(file, config.text_field))
    return Windows(pack(documents), config.sequence_length)


def _documents(file: Path, text_field: str) -> Iterator[bytes | str]:
    if file.suffix != ".jsonl":
        yield file.read_bytes()
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            yield _text(line, text_field, f"{file}:{number}")


def _text(line: str, text_field: str, where: str) -> str:
    try:
        record: Any = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    text = record.get(text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise DataError(f"{where}: no text in the field {text_field!r}; set text_field")
    return text


def training_batches(
    config: DataloaderConfig, batch_size: int, shuffle_seed: int
) -> grain.DatasetIterator[Batch]:
    """Global batches without end, shuffled anew in each epoch. `get_state` and `set_state` of the
    iterator tell and set its position."""
    windows = grain.MapDataset.source(read_windows(config)).seed(shuffle_seed)
    batches: Any = windows.shuffle().repeat().batch(batch_size)
    return iter(batches.to_iter_dataset(_READ))


def validation_batches(config: DataloaderConfig, batch_size: int, steps: int) -> list[Batch]:
    """The first `steps` global batches in the data's own order, from the start again if short."""
    batches: Any = grain.MapDataset.source(read_windows(config)).repeat().batch(batch_size)
    return [batches[index] for index in range(steps)]
