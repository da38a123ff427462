"""The data pipeline: files to examples, which are windows of a stream of tokens, or pairs;
and these to shuffled global batches.

Every worker reads whole global batches and puts its own part of them on its devices, so neither the
content of a batch nor the position in the data depends on how many devices or workers there are:
the position is the number of batches read.
"""

# mypy: disable-error-code="attr-defined,name-defined"
from __future__ import annotations

from typing import Any

import grain
import numpy as np
import numpy.typing as npt

from supervisor.config.training.data_files import DataError
from supervisor.config.training.sections import VOCABULARY_SIZE, DataloaderConfig
from trainer.token_files import Stream, read_pairs, read_stream

Batch = npt.NDArray[np.int32]
"""Token ids [global batch, sequence length + 1]: inputs, and targets shifted by one position. For
pairs twice as many: one sequence, then the other."""

_READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)


class Windows:
    """A stream of tokens as a random-access source of windows [length + 1].

    A window starts at the last token of the one before: every token is a target once.
    """

    def __init__(self, tokens: Stream, length: int) -> None:
        self._tokens = tokens
        self._length = length
        if len(self) == 0:
            raise DataError(f"{len(tokens)} tokens of data do not fill one window of {length + 1}")

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._length)

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        start = index * self._length
        return self._tokens[start : start + self._length + 1].astype(np.int32)


def read_windows(config: DataloaderConfig, vocab_size: int = VOCABULARY_SIZE) -> Windows:
    """Read all data of `config` into memory: two bytes per token (four for a large vocabulary).

    Raises:
        DataError: a record that is not as the config says, or too little data.
    """
    return Windows(read_stream(config, vocab_size), config.sequence_length)


def read_examples(config: DataloaderConfig, vocab_size: int) -> Windows | npt.NDArray[np.int32]:
    """Return all examples of `config`, by index: windows of one stream, or pairs; errors as
    `read_windows`."""
    if config.chosen_field is not None:
        return read_pairs(config)
    return read_windows(config, vocab_size)


def training_batches(
    config: DataloaderConfig,
    batch_size: int,
    shuffle_seed: int,
    vocab_size: int = VOCABULARY_SIZE,
) -> grain.DatasetIterator[Batch]:
    """Return an endless iterator of global batches, reshuffled in each epoch. Its `get_state` and
    `set_state` read and set the position."""
    examples = grain.MapDataset.source(read_examples(config, vocab_size)).seed(shuffle_seed)
    batches: Any = examples.shuffle().repeat().batch(batch_size)
    return iter(batches.to_iter_dataset(_READ))


def validation_batches(
    config: DataloaderConfig, batch_size: int, steps: int, vocab_size: int = VOCABULARY_SIZE
) -> list[Batch]:
    """Return the first `steps` global batches in file order, starting over if there are fewer."""
    examples = grain.MapDataset.source(read_examples(config, vocab_size))
    batches: Any = examples.repeat().batch(batch_size)
    return [batches[index] for index in range(steps)]
