"""Reads logs of any size for `supervise classify`: chunk by chunk, into what is worth judging."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from supervisor.diagnosis.digest import LogDigest

STDIN = "-"
_CHUNK = 1 << 20


def is_log(name: str) -> bool:
    """Whether there is a log of this name."""
    return name == STDIN or Path(name).exists()


def digest_of(name: str) -> str:
    """What the log `name` (`-`: standard input) says that may tell why it ends.

    Raises:
        OSError: it cannot be read.
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
