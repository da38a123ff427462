"""Finds the files that a dataloader names, and reads and checks the records in them.

A model accepts a token id outside its vocabulary without an error, and trains on nonsense (or NaN).
So token ids that are not from our tokenizer are checked when they are read: the first records of
each file before the job starts anything, the others by the trainer. Those of phases that begin
later are checked while the job runs, too (`supervisor.later_data`).
"""

from __future__ import annotations

import glob
import json
import sysconfig
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from supervisor.config.problems import shown
from supervisor.config.training.sections import DataloaderConfig
from supervisor.protocol.reading import open_file

ANSWERS = "assistant"
"""The role of the messages of a chat that are answers."""
STDLIB = "stdlib"
"""The path that stands for Python's standard library: text that every training machine has."""

_STDLIB_BYTES = 2 * 1024 * 1024
_MAX_FIRST = 16 << 20
"""The most bytes of a first record: a longer one is not checked before the job runs."""
_BEFORE = 8 << 20
"""Bytes of a dataloader's records that are read before the job runs: that takes some 0.1 s."""
_AT_ONCE = 1 << 16
"""Bytes of records that are checked between two pauses."""
_TO_OPEN = 1 << 12
"""Bytes that could be checked in the time in which a file is opened, about."""
_LONGEST = 1 << 20
"""Bytes of a record that is checked while the job runs: of a longer one only the trainer knows."""


class DataError(ValueError):
    """The job cannot train on this data; the text names the file, the record and the reason."""


def check_first_records(config: DataloaderConfig, vocab_size: int, *, asks: bool = False) -> None:
    """Checks that the first records are of the form that `config` says; with `asks` for a model
    that answers them. They are those of some megabytes, and the first one of each file. Behind
    that, a last line without an end is passed over: an earlier phase may be about to write it.

    Raises:
        DataError: a record is not.
        OSError: a file cannot be read.
    """
    left = _BEFORE
    for file in _files_of_records(config):
        with open_file(file, linked=True) as unbuffered, BufferedReader(unbuffered) as data:
            number = 0
            while number == 0 or left > 0:
                number += 1
                line = data.readline(_MAX_FIRST)
                left -= len(line)
                is_whole = line.endswith(b"\n") or (number == 1 and len(line) < _MAX_FIRST)
                if not line or not is_whole:
                    break
                _check_line(line, f"{file}:{number}", config, vocab_size, asks=asks)


def check_all_records(
    config: DataloaderConfig, vocab_size: int, pause: Callable[[], None], *, asks: bool = False
) -> None:
    """Checks all records as `check_first_records` does the first ones, and calls `pause` after each
    of some milliseconds. A record of more than a megabyte is passed over. Errors as there."""
    read = 0
    for file in _files_of_records(config):
        number, begins = 0, True
        with open_file(file, linked=True) as unbuffered, BufferedReader(unbuffered) as data:
            while line := data.readline(_LONGEST):
                is_whole = line.endswith(b"\n") or len(line) < _LONGEST
                if begins:
                    number += 1
                    if is_whole:
                        _check_line(line, f"{file}:{number}", config, vocab_size, asks=asks)
                begins, read = is_whole, read + len(line)
                if read >= _AT_ONCE:
                    read = 0
                    pause()
        read += _TO_OPEN


def check_amount(config: DataloaderConfig, *, counts_bytes: bool) -> None:
    """Checks that there is a record, and that the data fill a sequence where their tokens are known
    without a tokenizer: ids, or with `counts_bytes` bytes of text. It reads no more than that.

    Raises:
        DataError: there is too little, or one of these records is not as the config says.
        OSError: a file cannot be read.
    """
    is_counted = config.is_stream and (counts_bytes or config.tokens_field is not None)
    found, number = 0, 0
    for number, size in enumerate(_numbers_of_tokens(config), 1):  # noqa: B007
        found += size
        if found > config.sequence_length or not is_counted:
            return
    if number == 0:
        raise no_record(config)
    raise too_few_tokens(config, found)


def no_record(config: DataloaderConfig) -> DataError:
    """Returns the error of data without any record."""
    return DataError(
        f"there is no record in {', '.join(config.paths)}: add some, or name other files in paths"
    )


def too_few_tokens(config: DataloaderConfig, number: int) -> DataError:
    """Returns the error of data that are `number` tokens only."""
    length = config.sequence_length
    return DataError(
        f"{number} tokens of data do not fill one sequence of sequence_length {length}, which "
        f"needs {length + 1}: add data to {', '.join(config.paths)}, or set a smaller "
        "sequence_length"
    )


def _numbers_of_tokens(config: DataloaderConfig) -> Iterator[int]:
    """Yields the number of tokens of each record or text file; each byte is one, and the end. A
    record that is too long to be checked before the job runs counts as a sequence."""
    for pattern in config.paths:
        for file in matching_files(pattern):
            if file.suffix != ".jsonl" and not config.reads_records:
                yield file.stat().st_size + 1
                continue
            with open_file(file, linked=True) as unbuffered, BufferedReader(unbuffered) as data:
                for number, line in enumerate(iter(partial(data.readline, _MAX_FIRST), b""), 1):
                    if len(line) == _MAX_FIRST:
                        yield config.sequence_length + 1
                    elif line.strip():
                        where = f"{file}:{number}"
                        yield _number_of_tokens(parse_record(line, where), config, where)


def _number_of_tokens(record: dict[str, Any], config: DataloaderConfig, where: str) -> int:
    if config.tokens_field is not None:
        ids = record.get(config.tokens_field)
        return len(ids) if isinstance(ids, list) else 0
    if not config.is_stream:
        return 1
    if config.completion_field is not None:
        text = "".join(completion_of(record, config, where))
    else:
        text = text_of(record, config.text_field, where)
    return len(text.encode(errors="replace")) + 1


def _files_of_records(config: DataloaderConfig) -> Iterator[Path]:
    files = (file for pattern in config.paths for file in matching_files(pattern))
    return (file for file in files if file.suffix == ".jsonl" or config.reads_records)


def _check_line(
    line: bytes, where: str, config: DataloaderConfig, vocab_size: int, *, asks: bool
) -> None:
    if not line.strip():
        return
    record = parse_record(line, where)
    if config.tokens_field is not None:
        tokens_of(record, config.tokens_field, vocab_size, where)
    elif config.messages_field is not None:
        (questions_of if asks else messages_of)(record, config, where)
    elif config.chosen_field is not None:
        pair_of(record, config, where)
    elif config.completion_field is not None:
        completion_of(record, config, where)
    elif config.has_prompts_alone:
        prompt_of(record, config, where)
    else:
        text_of(record, config.text_field, where)


def records(file: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the records of a JSONL file, each with its place (`file:line`). Blank lines are passed
    over.

    Raises:
        DataError: a record is not JSON, or is no object.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{file}:{number}"
                yield parse_record(line, where), where


def parse_record(line: bytes, where: str) -> dict[str, Any]:
    """Returns the record in `line`.

    Raises:
        DataError: the line is not JSON, or is no object.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise DataError(
            f"{where}: the line is {_in_words(record)}, not an object with fields: mend or remove "
            "it"
        )
    return record


def text_of(record: dict[str, Any], field: str, where: str, key: str = "text_field") -> str:
    """Returns the text in the field `field` of `record`, which the key `key` names.

    Raises:
        DataError: the field has no text.
    """
    if field not in record:
        raise DataError(f"{where}: no text in the field {field!r}; set {key}")
    text = record[field]
    if not isinstance(text, str):
        raise DataError(
            f"{where}: the field {field!r} holds {_in_words(text)}, not text: mend or remove the "
            f"record, or set {key} to another field"
        )
    return text


def _in_words(value: Any) -> str:
    """Returns what kind of JSON value it is."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case dict():
            return "an object"
    return "text"


def completion_of(record: dict[str, Any], config: DataloaderConfig, where: str) -> tuple[str, str]:
    """Returns the prompt and the completion of `record`; the prompt is empty if the config names
    none.

    Raises:
        DataError: one of them has no text, or the completion is empty.
    """
    assert config.completion_field is not None
    completion = _learned(record, config.completion_field, where, "completion_field")
    return _prompt(record, config, where), completion


def messages_of(record: dict[str, Any], config: DataloaderConfig, where: str) -> list[Any]:
    """Returns the messages of the chat in `record`.

    Raises:
        DataError: it has none, one has no role or no text, or there is no answer to learn.
    """
    messages = _messages(record, config, where)
    if not any(message["role"] == ANSWERS for message in messages):
        raise DataError(
            f"{where}: no message in the field {config.messages_field!r} has the role {ANSWERS!r}, "
            "so there is nothing to learn: remove the record, or mend it"
        )
    return messages


def questions_of(record: dict[str, Any], config: DataloaderConfig, where: str) -> list[Any]:
    """Returns the messages of the chat in `record` up to its last question, which the model
    answers.

    Raises:
        DataError: it has none, or one has no role or no text.
    """
    messages = _messages(record, config, where)
    while messages and messages[-1]["role"] == ANSWERS:
        messages = messages[:-1]
    if not messages:
        raise DataError(
            f"{where}: all messages in the field {config.messages_field!r} have the role "
            f"{ANSWERS!r}, so there is no question to answer: remove the record, or mend it"
        )
    return messages


def _messages(record: dict[str, Any], config: DataloaderConfig, where: str) -> list[Any]:
    field = config.messages_field
    messages = record.get(field) if field is not None else None
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: no messages in the field {field!r}; set messages_field")
    for number, message in enumerate(messages, 1):
        for key in ("role", "content"):
            if not isinstance(message, dict) or not isinstance(message.get(key), str):
                raise DataError(
                    f"{where}: message {number} in the field {field!r} has no text in {key!r}: "
                    "mend or remove the record"
                )
    return messages


def pair_of(record: dict[str, Any], config: DataloaderConfig, where: str) -> tuple[str, str, str]:
    """Returns the prompt of `record`, the chosen completion and the rejected one; the prompt is
    empty if the config names none.

    Raises:
        DataError: one of them has no text, a completion is empty, or both are the same.
    """
    assert config.chosen_field is not None
    assert config.rejected_field is not None
    chosen = _learned(record, config.chosen_field, where, "chosen_field")
    rejected = _learned(record, config.rejected_field, where, "rejected_field")
    if chosen == rejected:
        raise DataError(
            f"{where}: the fields {config.chosen_field!r} and {config.rejected_field!r} hold the "
            "same text, so neither is to be preferred: remove the record, or mend it"
        )
    return _prompt(record, config, where), chosen, rejected


def prompt_of(record: dict[str, Any], config: DataloaderConfig, where: str) -> str:
    """Returns the prompt of `record`, to which the model makes completions.

    Raises:
        DataError: the field has no text, or an empty one.
    """
    assert config.prompt_field is not None
    prompt = text_of(record, config.prompt_field, where, "prompt_field")
    if not prompt:
        raise DataError(
            f"{where}: the prompt in the field {config.prompt_field!r} is empty, so there is "
            "nothing to answer: remove the record, or mend it"
        )
    return prompt


def _prompt(record: dict[str, Any], config: DataloaderConfig, where: str) -> str:
    if config.prompt_field is None:
        return ""
    return text_of(record, config.prompt_field, where, "prompt_field")


def _learned(record: dict[str, Any], field: str, where: str, key: str) -> str:
    completion = text_of(record, field, where, key)
    if not completion:
        raise DataError(
            f"{where}: the completion in the field {field!r} is empty, so there "
            "is nothing to learn: remove the record, or mend it"
        )
    return completion


def tokens_of(record: dict[str, Any], field: str, vocab_size: int, where: str) -> list[int]:
    """Returns the token ids in the field `field` of `record`.

    Raises:
        DataError: the field has no token ids, or one that is outside the vocabulary.
    """
    ids = record.get(field)
    if not isinstance(ids, list):
        raise DataError(f"{where}: no token ids in the field {field!r}; set tokens_field")
    if not set(map(type, ids)) <= {int}:
        position = next(n for n, token in enumerate(ids) if type(token) is not int)
        raise DataError(
            f"{where}: {shown(ids[position])} at position {position} in the field {field!r} is no "
            "integer, so it is no token id: mend or remove the record, or set tokens_field"
        )
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        position = next(n for n, token in enumerate(ids) if not 0 <= token < vocab_size)
        raise DataError(
            f"{where}: token id {ids[position]} at position {position} is outside the "
            f"vocabulary: trainer.init.model.vocab_size is {vocab_size}. Set it to that of the "
            "tokenizer that made the data, or mend the record"
        )
    return ids


def matching_files(pattern: str) -> list[Path]:
    """Returns the files that `pattern` matches, sorted by path; it is a path or a glob, also `**`.

    `stdlib` stands for the source files at the top of Python's standard library, and
    `stdlib/PATTERN` for those that match below it: whole files, up to 2 MiB in all.
    """
    root, _, below = pattern.partition("/")
    if root != STDLIB:
        return _files(pattern)
    library = glob.escape(sysconfig.get_paths()["stdlib"])
    return _bounded(_files(f"{library}/{below or '*.py'}"))


def _files(pattern: str) -> list[Path]:
    # Path.glob raises on some patterns, and this pattern comes from a config.
    found = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207
    return sorted(path for path in found if path.is_file())


def _bounded(files: list[Path]) -> list[Path]:
    kept: list[Path] = []
    total = 0
    for file in files:
        total += file.stat().st_size
        if kept and total > _STDLIB_BYTES:
            break
        kept.append(file)
    return kept
