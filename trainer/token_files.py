"""Reads the tokens of data files: text through our tokenizer, or token ids of another tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from supervisor.config.training.data_files import (
    DataError,
    completion_of,
    matching_files,
    pair_of,
    records,
    text_of,
    tokens_of,
)
from supervisor.config.training.sections import END_OF_DOCUMENT, DataloaderConfig
from trainer.objective import unlearned
from trainer.tokenizer import encode, pack

Stream = npt.NDArray[np.uint16] | npt.NDArray[np.int32]
"""Token ids, in the smaller type that holds the vocabulary; int32 where some are not learned
(`objective.unlearned`)."""


def read_stream(config: DataloaderConfig, vocab_size: int) -> Stream:
    """Return all tokens of `config`, one document after the other.

    Raises:
        DataError: a record lacks the configured field, or has ids outside the vocabulary.
    """
    files = [file for pattern in config.paths for file in matching_files(pattern)]
    if config.completion_field is not None:
        pairs = [part for file in files for part in _completions(file, config)]
        return np.concatenate(pairs) if pairs else np.empty(0, np.int32)
    if config.tokens_field is None:
        return pack(text for file in files for text in _texts(file, config.text_field))
    kind: Any = np.uint16 if vocab_size <= 2**16 else np.int32
    parts = [ids for file in files for ids in _ids(file, config.tokens_field, vocab_size, kind)]
    return np.concatenate(parts) if parts else np.empty(0, kind)


def read_pairs(config: DataloaderConfig) -> npt.NDArray[np.int32]:
    """Return all pairs of `config`, [pairs, 2 x (length + 1)]: in each the sequence with the chosen
    completion, then that with the rejected one. A sequence begins with the end of a document, as
    after another one; what is left of it is filled with more of them, which are not learned.

    Raises:
        DataError: a record lacks a field, or does not fit into a sequence.
    """
    found, too_long = list[npt.NDArray[np.int32]](), list[tuple[int, str]]()
    for pattern in config.paths:
        for file in matching_files(pattern):
            for record, where in records(file):
                prompt, *completions = pair_of(record, config, where)
                sequences = [_sequence(prompt, completion) for completion in completions]
                longest = max(map(len, sequences))
                if longest > config.sequence_length + 1:
                    too_long.append((longest, where))
                else:
                    found += [_filled(one, config.sequence_length + 1) for one in sequences]
    if too_long:
        length, where = max(too_long)
        raise DataError(
            f"{where}: its prompt and one completion are {length - 1} tokens with the end, more "
            f"than sequence_length, {config.sequence_length}. {len(too_long)} records are too "
            "long, this one the most: raise sequence_length, or shorten or remove them"
        )
    if not found:
        raise DataError(f"there is no record in {', '.join(config.paths)}")
    return np.stack(found).astype(np.int32).reshape(len(found) // 2, -1)


def _sequence(prompt: str, completion: str) -> npt.NDArray[np.int32]:
    """Return the tokens of a prompt, which are not learned, and of its completion with the end."""
    begin = pack([""]).astype(np.int32)
    read = np.concatenate([begin, encode(prompt).astype(np.int32)])
    return np.concatenate([unlearned(read), pack([completion]).astype(np.int32)])


def _filled(sequence: npt.NDArray[np.int32], length: int) -> npt.NDArray[np.int32]:
    filling: int = unlearned(END_OF_DOCUMENT)
    return np.pad(sequence, (0, length - len(sequence)), constant_values=filling)


def _texts(file: Path, field: str) -> Iterator[bytes | str]:
    if file.suffix != ".jsonl":
        yield file.read_bytes()
        return
    for record, where in records(file):
        yield text_of(record, field, where)


def _completions(file: Path, config: DataloaderConfig) -> Iterator[npt.NDArray[np.int32]]:
    """Yields the prompt of each record, which is not learned, and its completion with the end."""
    for record, where in records(file):
        prompt, completion = completion_of(record, config, where)
        yield unlearned(encode(prompt).astype(np.int32))
        yield pack([completion]).astype(np.int32)


def _ids(file: Path, field: str, vocab_size: int, kind: Any) -> Iterator[npt.NDArray[Any]]:
    for record, where in records(file):
        yield np.asarray(tokens_of(record, field, vocab_size, where), kind)
