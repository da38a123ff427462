"""The data pipeline: files to tokens, which are stored; these to examples, which are windows of a
stream, packed rows, or pairs; and these to shuffled global batches.

Every worker reads whole global batches and puts its own part of them on its devices, so neither the
content of a batch nor the position in the data depends on how many devices or workers there are:
the position is the number of batches read. An example is found by its number, so reading goes on at
any position as quickly as at the first.
"""

# mypy: disable-error-code="attr-defined,name-defined"
from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import grain
import numpy as np
import numpy.typing as npt

from supervisor.config.training.data_files import matching_files, no_record, too_few_tokens
from supervisor.config.training.resolved import InitConfig, TrainerConfig
from supervisor.config.training.sections import VOCABULARY_SIZE, DataloaderConfig
from trainer.pretrained_tokenizer import PretrainedTokenizer
from trainer.token_files import PromptFile, pieces, places, read_prompts, row_length
from trainer.token_store import HasRead, StoredTokens, stored
from trainer.tokenizer import BYTES, Ids, Tokenizer

_FORMAT = 2
"""A version of what is stored: another one stores anew."""

Batch = npt.NDArray[np.int32]
"""Token ids [global batch, sequence length + 1]: inputs, and targets shifted by one position. For
pairs twice as many: one sequence, then the other."""

_BYTES_PER_TOKEN = 64
"""More bytes of data than one token has, but for texts that nobody trains on."""

_READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)


class Windows:
    """A stream of tokens as a random-access source of windows [length + 1].

    A window starts at the last token of the one before: every token is a target once.
    """

    def __init__(self, tokens: StoredTokens, length: int) -> None:
        self._tokens = tokens
        self._length = length

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._length)

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        start = index * self._length
        return self._tokens.between(start, start + self._length + 1).astype(np.int32)


class Rows:
    """Tokens as a random-access source of rows of a fixed length."""

    def __init__(self, tokens: StoredTokens, length: int) -> None:
        self._tokens = tokens
        self._length = length

    def __len__(self) -> int:
        return len(self._tokens) // self._length

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._tokens.between(index * self._length, (index + 1) * self._length)


def tokenizer_of(init: InitConfig) -> Tokenizer:
    """Return the tokenizer of the config; errors as `PretrainedTokenizer`."""
    if init.tokenizer_folder is None:
        return BYTES
    return _pretrained(init.tokenizer_folder, init.model.vocab_size)


_pretrained = cache(PretrainedTokenizer)


def read_examples(
    config: DataloaderConfig,
    vocab_size: int = VOCABULARY_SIZE,
    tokenizer: Tokenizer = BYTES,
    has_read: HasRead = lambda tokens: None,
) -> Windows | Rows:
    """Return all examples of `config`, by index: windows of one stream, or rows. For `has_read` see
    `token_store.stored`.

    Raises:
        DataError: a record is not as the config says, or there is too little data.
    """
    identity = _identity(config, vocab_size, tokenizer)
    read = (ids for ids, _ in pieces(config, tokenizer, vocab_size))
    tokens = stored(read, identity, has_read)
    length = row_length(config)
    if length is None:
        windows = Windows(tokens, config.sequence_length)
        if len(windows) == 0:
            raise too_few_tokens(config, len(tokens))
        return windows
    if len(tokens) == 0:
        raise no_record(config)
    return Rows(tokens, length)


def _identity(config: DataloaderConfig, vocab_size: int, tokenizer: Tokenizer) -> str:
    """Return digests of what decides the tokens: the config, and the data."""
    files = [file for pattern in config.paths for file in matching_files(pattern)]
    data = [(str(file), (now := file.stat()).st_size, now.st_mtime_ns) for file in files]
    facts = [_FORMAT, config.model_dump(mode="json"), vocab_size, tokenizer.identity]
    return f"{_digest(facts)}-{_digest(data)}"


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def shuffled_batches(
    examples: Any, batch_size: int, shuffle_seed: int
) -> grain.DatasetIterator[Batch]:
    """Return an endless iterator of batches of `examples`, by index, reshuffled in each epoch.
    Its `get_state` and `set_state` read and set the position."""
    source = grain.MapDataset.source(examples).seed(shuffle_seed)
    batches: Any = source.shuffle().repeat().batch(batch_size)
    return iter(batches.to_iter_dataset(_READ))


def first_batches(examples: Windows | Rows | Ids, batch_size: int, steps: int) -> list[Batch]:
    """Return the first `steps` batches in file order, starting over if there are fewer."""
    batches: Any = grain.MapDataset.source(examples).repeat().batch(batch_size)
    return [batches[index] for index in range(steps)]


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The data of a phase. `batches` is the iterator over its global batches, or over those of
    `prompts`."""

    batches: Any
    size: int
    """The number of examples, or of prompts."""
    prompts: PromptFile | None = None


def training_data(config: TrainerConfig, has_read: HasRead = lambda tokens: None) -> TrainingData:
    """Read the data that `config` trains on. For `has_read` see `token_store.stored`.

    Raises:
        DataError: they are not as the config says.
    """
    init, loader = config.init, config.fit.decisive
    batch, seed = init.loop.global_batch_size, init.data_shuffle_seed
    tokenizer = tokenizer_of(init)
    _check_amount_to_validate_on(config, tokenizer)
    if init.grpo is None:
        examples = read_examples(loader, init.model.vocab_size, tokenizer, has_read)
        return TrainingData(shuffled_batches(examples, batch, seed), len(examples))
    prompts = read_prompts(loader, init.grpo.completion_length, tokenizer, has_read)
    batches = shuffled_batches(prompts.rows, batch // init.grpo.group_size, seed)
    return TrainingData(batches, len(prompts.rows), prompts)


def _check_amount_to_validate_on(config: TrainerConfig, tokenizer: Tokenizer) -> None:
    """Read the validation data if there is so little that it may not fill a sequence: else nobody
    would know before the first validation.

    Raises:
        DataError: it does not.
    """
    validation = config.fit.validation
    if validation is None or not validation.dataloader.is_stream:
        return
    loader = validation.dataloader
    files = [file for pattern in loader.paths for file in matching_files(pattern)]
    if sum(file.stat().st_size for file in files) <= _BYTES_PER_TOKEN * loader.sequence_length:
        read_examples(loader, config.init.model.vocab_size, tokenizer)


def places_of_batch(config: TrainerConfig, data: TrainingData, position: Any) -> list[list[str]]:
    """Return where each example of the batch at `position` is from, as `file:line`: the records
    that are in it. It reads the data again, up to the last of them."""
    init, loader = config.init, config.fit.decisive
    group = 1 if init.grpo is None else init.grpo.group_size
    size, seed = init.loop.global_batch_size // group, init.data_shuffle_seed
    numbers = shuffled_batches(range(data.size), size, seed)
    numbers.set_state(position)
    chosen = [int(number) for number in next(numbers)]
    if data.prompts is not None:
        return [[data.prompts.places[number]] for number in chosen for _ in range(group)]
    length = row_length(loader)
    step, first = (loader.sequence_length, 1) if length is None else (length, 0)
    spans = {number: range(number * step + first, (number + 1) * step + first) for number in chosen}
    tokenizer = tokenizer_of(init)
    found = places(loader, tokenizer, init.model.vocab_size, list(spans.values()))
    by_number = dict(zip(spans, found, strict=True))
    return [by_number[number] for number in chosen]
