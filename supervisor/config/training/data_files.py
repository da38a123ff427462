"""The files that a dataloader names, and the records in them.

A model takes a token id outside its vocabulary without a word and trains on nonsense (or NaN), so
what was not tokenised by our tokenizer is checked while it is read: of each file the first record
before anything is started, the others by the trainer.
"""

from __future__ import annotations

import glob
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.config.training.sections import DataloaderConfig
from supervisor.protocol.reading import opened

STDLIB = "stdlib"
"""The path that stands for Python's own library: text that is on every machine that trains."""

_STDLIB_BYTES = 2 * 1024 * 1024
_MAX_FIRST = 16 << 20
"""Bytes of a first record that is looked at: what is longer is not read before the job runs."""


class DataError(ValueError):
    """Data that cannot be trained on; the text says which file, which record and why."""


def check_first_records(config: DataloaderConfig, vocab_size: int) -> None:
    """Check that the first record of each file is of the form that `config` says.

    Raises:
        DataError: it is not.
        OSError: a file cannot be read.
    """
    for file in (file for pattern in config.paths for file in matching_files(pattern)):
        with opened(file, linked=True) as data:
            is_jsonl = file.suffix == ".jsonl" or config.tokens_field is not None
            line = data.readline(_MAX_FIRST) if is_jsonl else b""
        if line and len(line) < _MAX_FIRST:
            record, where = parse_record(line, f"{file}:1"), f"{file}:1"
            if config.tokens_field is not None:
                tokens_of(record, config.tokens_field, vocab_size, where)
            else:
                text_of(record, config.text_field, where)


def records(file: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the records of a JSONL file, each with where it stands.

    Raises:
        DataError: one is not JSON.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{file}:{number}"
            yield parse_record(line, where), where


def parse_record(line: bytes, where: str) -> dict[str, Any]:
    """Return the record in `line`; without fields where it is no mapping.

    Raises:
        DataError: it is not JSON.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    return record if isinstance(record, dict) else {}


def text_of(record: dict[str, Any], field: str, where: str) -> str:
    """Return the text of `record`.

    Raises:
        DataError: it has none.
    """
    text = record.get(field)
    if not isinstance(text, str):
        raise DataError(f"{where}: no text in the field {field!r}; set text_field")
    return text


def tokens_of(record: dict[str, Any], field: str, vocab_size: int, where: str) -> list[int]:
    """Return the token ids of `record`.

    Raises:
        DataError: it has none, or one outside the vocabulary.
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
    """The files that `pattern` (a path or a glob, `**` included) names, sorted by path.

    `stdlib` names the sources at the top of Python's library, whole files up to 2 MiB in all, and
    `stdlib/PATTERN` what matches below it.
    """
    root, _, below = pattern.partition("/")
    if root != STDLIB:
        return _files(pattern)
    library = glob.escape(sysconfig.get_paths()["stdlib"])
    return _bounded(_files(f"{library}/{below or '*.py'}"))


def _files(pattern: str) -> list[Path]:
    # Not Path.glob: it raises on some patterns, and this one comes from a config.
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
