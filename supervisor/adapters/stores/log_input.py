"""Reads logs of any size for `supervise classify` in chunks, and keeps what is worth judging."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from supervisor.diagnosis.digest import LogDigest

STDIN = "-"
_CHUNK = 1 << 20


def is_log(name: str) -> bool:
    """True if there is a log of this name: a file, or `-` for standard input."""
    return name == STDIN or Path(name).exists()


def digest_of(name: str) -> str:
    """Returns the part of the log `name` (`-`: standard input) that may explain its end.

    Raises:
        OSError: the log cannot be read.
    """
    if name == STDIN:
        return _digest(sys.stdin.buffer)
    with Path(name).open("rb", buffering=0) as file:
        return _digest(file)


def _digest(file: BinaryIO) -> str:
    digest = LogDigest()
    while chunk := file.read(_CHUNK):
        digest.feed(chunk)
    return digest.text()
