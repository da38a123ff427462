"""Reads data files as tokens: a stream of documents, or rows with whole examples.

Only some records at a time are in memory. They are encoded together, because a tokenizer may use
several threads for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from supervisor.config.training.data_files import (
    DataError,
    completion_of,
    matching_files,
    messages_of,
    no_record,
    pair_of,
    prompt_of,
    questions_of,
    records,
    text_of,
    tokens_of,
)
from supervisor.config.training.sections import DataloaderConfig
from trainer.chat import Part, examples_of
from trainer.objective import unlearned
from trainer.packing import rows_of
from trainer.pretrained_tokenizer import PretrainedTokenizer
from trainer.token_store import HasRead
from trainer.tokenizer import BYTES, Ids, Tokenizer

_TOGETHER = 1 << 20
"""Characters that are encoded together, or a whole record."""

T = TypeVar("T")


def row_length(config: DataloaderConfig) -> int | None:
    """Return the tokens of a row; None: the tokens are a stream."""
    if config.chosen_field is not None:
        return 2 * (config.sequence_length + 1)
    return config.sequence_length + 1 if config.packs_examples else None


Piece = tuple[Ids, list[str]]
"""Tokens, and the places of the records or files that they are from: one and the same list for all
tokens of a document."""


def pieces(config: DataloaderConfig, tokenizer: Tokenizer, vocab_size: int) -> Iterator[Piece]:
    """Yield all tokens of `config`: one document after the other, or rows of `row_length`.

    Raises:
        DataError: a record is not as the config says, has ids outside the vocabulary, or does not
            fit into a row.
    """
    if config.chosen_field is not None:
        yield from _pairs(config, tokenizer)
    elif config.packs_examples:
        fitting = _Fitting(config)
        examples = filter(fitting, _examples(config, tokenizer))
        width, padding = config.sequence_length + 1, int(unlearned(tokenizer.end))
        yield from rows_of(examples, width, padding)
        fitting.check()
    elif config.completion_field is not None:
        yield from ((ids, [where]) for ids, where in _examples(config, tokenizer))
    elif config.tokens_field is not None:
        for record, where in _records(config):
            tokens = tokens_of(record, config.tokens_field, vocab_size, where)
            yield np.array(tokens, np.int32), [where]
    else:
        texts = (text for file in _files(config) for text in _texts(file, config.text_field))
        for (_, where), ids in _encoded(texts, tokenizer, lambda one: [one[0]]):
            place = [where]
            yield from ((piece, place) for piece in _document(ids, tokenizer))


def places(
    config: DataloaderConfig, tokenizer: Tokenizer, vocab_size: int, spans: Sequence[range]
) -> list[list[str]]:
    """Return for each of the `spans` of tokens, which do not overlap, the places of the records
    that they are from: `file:line`. Of a text file it is the line at which the span begins in it.
    All data up to the last of the spans is read again. Errors as `pieces`."""
    found: dict[int, dict[str, None]] = {each.start: {} for each in spans}
    ordered = sorted(spans, key=lambda each: each.start)
    position, read = 0, list[Ids]()
    document: list[str] | None = None
    for ids, where in pieces(config, tokenizer, vocab_size):
        while ordered and ordered[0].stop <= position:
            ordered.pop(0)
        if not ordered:
            break
        if where is not document:
            document, read = where, []
        for each in ordered:
            begin = each.start - position
            if begin >= len(ids):
                break
            if begin >= 0 or not read:  # else an earlier piece of the document has told
                before = [*read, ids[: max(0, begin)]]
                told = [_told(config, tokenizer, one, before) for one in where]
                found[each.start].update(dict.fromkeys(told))
        read.append(ids)
        position += len(ids)
    return [list(found[each.start]) for each in spans]


def _told(config: DataloaderConfig, tokenizer: Tokenizer, where: str, before: Sequence[Ids]) -> str:
    """Return the place of what follows on the tokens `before` of the record or file `where`."""
    if not _is_whole_text(config, where):
        return where
    return f"{where}:{_line(tokenizer, before)}"


def _is_whole_text(config: DataloaderConfig, where: str) -> bool:
    """Whether a place is a file, and not a record of one."""
    return not config.reads_records and not where.rpartition(":")[0].endswith(".jsonl")


def _line(tokenizer: Tokenizer, before: Sequence[Ids]) -> int:
    """Return the number of the line that follows on these tokens of a text."""
    ids = np.concatenate(before)
    if tokenizer is BYTES:
        return 1 + int(np.count_nonzero(ids == ord("\n")))
    begin = len(tokenizer.begin) if tokenizer.begin != (tokenizer.end,) else 0
    return 1 + tokenizer.text(ids[begin:]).count("\n")


PROMPT_FACTS = 2
"""Numbers in front of the token ids of a prompt: the index of its record, and its length."""


@dataclass(frozen=True, slots=True)
class PromptFile:
    """Prompts, and the records that they are read from."""

    rows: Ids
    """[prompts, 2 + width]: the index of the record, how many tokens the prompt has, and these."""
    records: list[dict[str, Any]]
    places: list[str]
    """The place of each record: `file:line`."""
    num_before: int
    """How many tokens the tokenizer puts before the text of a prompt."""


def read_prompts(
    config: DataloaderConfig,
    completion_length: int,
    tokenizer: Tokenizer,
    has_read: HasRead = lambda tokens: None,
) -> PromptFile:
    """Return all prompts of `config`. A prompt begins as a document does, or as the chat template
    writes it, and leaves room for completions. Meanwhile `has_read` is called with the number of
    tokens that are read.

    Raises:
        DataError: a record has no prompt, or one that is too long.
    """
    width = config.sequence_length + 1 - completion_length
    found, too_long = list[dict[str, Any]](), list[tuple[int, str]]()
    is_chat = config.messages_field is not None
    rows, begin = list[Ids](), np.array(() if is_chat else tokenizer.begin, np.int32)
    where_found = list[str]()
    num_tokens = 0
    text_of_prompt = _question if is_chat else _prompt
    asked = (
        (text_of_prompt(record, config, where, tokenizer), record, where)
        for record, where in _records(config)
    )
    for (_, record, where), (ids,) in _encoded(asked, tokenizer, lambda one: [one[0]]):
        prompt = np.concatenate([begin, ids])
        num_tokens += len(prompt)
        has_read(num_tokens)
        if len(prompt) == 0:
            raise DataError(f"{where}: its prompt makes no token: remove the record, or mend it")
        if len(prompt) > width:
            too_long.append((len(ids), where))
            continue
        facts = np.array([len(found), len(prompt)], np.int32)
        filled = np.pad(prompt, (0, width - len(prompt)), constant_values=tokenizer.end)
        rows.append(np.concatenate([facts, filled]).astype(np.int32))
        found.append(record)
        where_found.append(where)
    if too_long:
        length, where = max(too_long)
        raise DataError(
            f"{where}: its prompt is {length} tokens, more than the {width - len(begin)} that "
            f"sequence_length, {config.sequence_length}, leaves beside completions of "
            f"{completion_length} (init.grpo.completion_length). {len(too_long)} records are too "
            "long, this one the most: raise sequence_length, or shorten or remove them"
        )
    if not rows:
        raise no_record(config)
    return PromptFile(np.stack(rows), found, where_found, len(begin))


def _prompt(
    record: dict[str, Any], config: DataloaderConfig, where: str, tokenizer: Tokenizer
) -> str:
    return prompt_of(record, config, where)


def _question(
    record: dict[str, Any], config: DataloaderConfig, where: str, tokenizer: Tokenizer
) -> str:
    """Return the text with which the chat template asks for an answer."""
    assert isinstance(tokenizer, PretrainedTokenizer), "the config was checked"
    return tokenizer.render(questions_of(record, config, where), where, asks=True)


def _document(ids: list[Ids], tokenizer: Tokenizer) -> Iterator[Ids]:
    """Yield a document of a stream. What comes before it may be there already: the end of the one
    before."""
    if tokenizer.begin != (tokenizer.end,):
        yield np.array(tokenizer.begin, np.int32)
    yield from ids
    yield np.array([tokenizer.end], np.int32)


def _examples(config: DataloaderConfig, tokenizer: Tokenizer) -> Iterator[tuple[Ids, str]]:
    """Yield each example, of which only the completion or the answers are learned, and its
    place."""
    parts_of = _chats if config.messages_field is not None else _completions
    begin = _beginning(config, tokenizer)
    end = [] if config.messages_field is not None else [np.array([tokenizer.end], np.int32)]
    found = _encoded(parts_of(config, tokenizer), tokenizer, lambda one: [p.text for p in one[0]])
    for (parts, where), given in found:
        ids = [
            one if part.is_learned else unlearned(one)
            for part, one in zip(parts, given, strict=True)
        ]
        yield np.concatenate([*begin, *ids, *end]), where


def _beginning(config: DataloaderConfig, tokenizer: Tokenizer) -> list[Ids]:
    """Return what comes before an example: a chat template writes it itself, and in a stream it may
    be there already."""
    if config.messages_field is not None:
        return []
    if not config.packs_examples and tokenizer.begin == (tokenizer.end,):
        return []
    return [unlearned(np.array(tokenizer.begin, np.int32))]


def _completions(config: DataloaderConfig, _: Tokenizer) -> Iterator[tuple[list[Part], str]]:
    for record, where in _records(config):
        prompt, completion = completion_of(record, config, where)
        yield [Part(prompt, False), Part(completion, True)], where


def _chats(config: DataloaderConfig, tokenizer: Tokenizer) -> Iterator[tuple[list[Part], str]]:
    assert isinstance(tokenizer, PretrainedTokenizer), "the config was checked"
    for record, where in _records(config):
        for parts in examples_of(messages_of(record, config, where), where, tokenizer.render):
            yield parts, where


class _Fitting:
    """Whether an example fits into a sequence; remembers the longest that does not."""

    def __init__(self, config: DataloaderConfig) -> None:
        self._length = config.sequence_length
        self._number = 0
        self._longest = 0, ""

    def __call__(self, example: tuple[Ids, str]) -> bool:
        ids, where = example
        if len(ids) <= self._length + 1:
            return True
        self._number += 1
        self._longest = max(self._longest, (len(ids), where))
        return False

    def check(self) -> None:
        """Raises DataError if there was one that does not fit."""
        length, where = self._longest
        if self._number:
            raise DataError(
                f"{where}: its text is {length - 1} tokens with the end, more than "
                f"sequence_length, {self._length}. {self._number} examples are too long, this one "
                "the most: raise sequence_length, or shorten or remove them"
            )


def _pairs(config: DataloaderConfig, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield each pair, [2 x (length + 1)]: the sequence with the chosen completion, then that with
    the rejected one. A sequence begins as after another document; what is left of it is filled with
    ends of documents, which are not learned."""
    width = config.sequence_length + 1
    too_long = list[tuple[int, str]]()
    begin, end = unlearned(np.array(tokenizer.begin, np.int32)), np.array([tokenizer.end], np.int32)
    found = ((pair_of(record, config, where), where) for record, where in _records(config))
    for (_, where), (prompt, *completions) in _encoded(found, tokenizer, lambda one: [*one[0]]):
        sequences = [
            np.concatenate([begin, unlearned(prompt), completion, end])
            for completion in completions
        ]
        longest = max(map(len, sequences))
        if longest > width:
            too_long.append((longest, where))
            continue
        filling = int(unlearned(tokenizer.end))
        for one in sequences:
            yield np.pad(one, (0, width - len(one)), constant_values=filling), [where]
    if too_long:
        length, where = max(too_long)
        raise DataError(
            f"{where}: its prompt and one completion are {length - 1} tokens with the end, more "
            f"than sequence_length, {config.sequence_length}. {len(too_long)} records are too "
            "long, this one the most: raise sequence_length, or shorten or remove them"
        )


def _encoded(
    items: Iterable[T], tokenizer: Tokenizer, texts_of: Callable[[T], list[Any]]
) -> Iterator[tuple[T, list[Ids]]]:
    """Yield each item with the ids of its texts."""
    for some in _groups((item, texts_of(item)) for item in items):
        given = iter(tokenizer.encode_all([text for _, texts in some for text in texts]))
        for item, texts in some:
            yield item, [next(given) for _ in texts]


def _groups(items: Iterable[tuple[T, list[Any]]]) -> Iterator[list[tuple[T, list[Any]]]]:
    """Yield items with their texts in groups of `_TOGETHER` characters."""
    group, size = list[tuple[T, list[Any]]](), 0
    for item in items:
        group.append(item)
        size += sum(map(len, item[1]))
        if size >= _TOGETHER:
            yield group
            group, size = [], 0
    if group:
        yield group


def _files(config: DataloaderConfig) -> list[Path]:
    return [file for pattern in config.paths for file in matching_files(pattern)]


def _records(config: DataloaderConfig) -> Iterator[tuple[dict[str, Any], str]]:
    for file in _files(config):
        yield from records(file)


def _texts(file: Path, field: str) -> Iterator[tuple[bytes | str, str]]:
    """Yield each text, and its place."""
    if file.suffix != ".jsonl":
        yield file.read_bytes(), str(file)
        return
    for record, where in records(file):
        yield text_of(record, field, where), where
