"""One format that is fuzzed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """One format. `read` takes the bytes of one, and raises nothing but what is in `refused`."""

    name: str
    sample: bytes
    read: Callable[[bytes], object]
    refused: tuple[type[Exception], ...] = ()
    file: Path | None = None
    """Where `look` finds it; other things than files are planted there."""
    look: Callable[[], object] = lambda: None


def in_file(
    name: str, sample: bytes, file: Path, look: Callable[[], object], *refused: type[Exception]
) -> Target:
    """A format that is read from the file `file`, by `look`."""
    file.parent.mkdir(parents=True, exist_ok=True)

    def read(data: bytes) -> object:
        file.write_bytes(data)
        return look()

    return Target(name, sample, read, refused, file, look)
