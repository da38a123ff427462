"""One format to be fuzzed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """One format. `read` reads bytes in that format, and raises only the exceptions in
    `refused`."""

    name: str
    sample: bytes
    read: Callable[[bytes], object]
    refused: tuple[type[Exception], ...] = ()
    file: Path | None = None
    """The file that `look` reads; things that are no regular files are planted there."""
    look: Callable[[], object] = lambda: None


def in_file(
    name: str, sample: bytes, file: Path, look: Callable[[], object], *refused: type[Exception]
) -> Target:
    """Return a format that `look` reads from the file `file`."""
    file.parent.mkdir(parents=True, exist_ok=True)

    def read(data: bytes) -> object:
        file.write_bytes(data)
        return look()

    return Target(name, sample, read, refused, file, look)
