"""Finds the files that a dataloader names, and reads and checks the records in them.

A model accepts a token id outside its vocabulary without an error, and trains on nonsense (or NaN).
So token ids that are not from our tokenizer are checked when they are read: the first record of
each file before the job starts anything, the other records by the trainer.
"""

from __future__ import annotations

import glob
import json
import sysconfig
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from supervisor.config.training.sections import DataloaderConfig
from supervisor.protocol.reading import open_file

STDLIB = "stdlib"
"""The path that stands for Python's standard library: text that every training machine has."""

_STDLIB_BYTES = 2 * 1024 * 1024
_MAX_FIRST = 16 << 20
"""The most bytes of a first record: a longer one is not checked before the job runs."""


class DataError(ValueError):
    """The job cannot train on this data; the text names the file, the record and the reason."""


def check_first_records(config: DataloaderConfig, vocab_size: int) -> None:
    """Checks that the first record of each file is of the form that `config` says.

    Raises:
        DataError: a record is not.
        OSError: a file cannot be read.
    """
    for file in (file for pattern in config.paths for file in matching_files(pattern)):
        with open_file(file, linked=True) as unbuffered, BufferedReader(unbuffered) as data:
            is_jsonl = file.suffix == ".jsonl" or config.reads_records
            line = data.readline(_MAX_FIRST) if is_jsonl else b""
        if line and len(line) < _MAX_FIRST:
            record, where = parse_record(line, f"{file}:1"), f"{file}:1"
            if config.tokens_field is not None:
                tokens_of(record, config.tokens_field, vocab_size, where)
            elif config.chosen_field is not None:
                pair_of(record, config, where)
            elif config.completion_field is not None:
                completion_of(record, config, where)
            else:
                text_of(record, config.text_field, where)


def records(file: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the records of a JSONL file, each with its place (`file:line`).

    Raises:
        DataError: a record is not JSON.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{file}:{number}"
            yield parse_record(line, where), where


def parse_record(line: bytes, where: str) -> dict[str, Any]:
    """Returns the record in `line`; an empty one if it is no mapping.

    Raises:
        DataError: the line is not JSON.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    return record if isinstance(record, dict) else {}


def text_of(record: dict[str, Any], field: str, where: str, key: str = "text_field") -> str:
    """Returns the text in the field `field` of `record`, which the key `key` names.

    Raises:
        DataError: the field has no text.
    """
    text = record.get(field)
    if not isinstance(text, str):
        raise DataError(f"{where}: no text in the field {field!r}; set {key}")
    return text


def completion_of(record: dict[str, Any], config: DataloaderConfig, where: str) -> tuple[str, str]:
    """Returns the prompt and the completion of `record`; the prompt is empty if the config names
    none.

    Raises:
        DataError: one of them has no text, or the completion is empty.
    """
    assert config.completion_field is not None
    completion = _learned(record, config.completion_field, where, "completion_field")
    return _prompt(record, config, where), completion


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
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        raise DataError(f"{where}: no token ids in the field {field!r}; set tokens_field")
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
