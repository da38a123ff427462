"""The storage port on a local (or mounted) directory."""

from __future__ import annotations

import os
from pathlib import Path


class LocalStorage:
    """Files below `root`. Whatever is durable has its directory entry synced as well."""

    def __init__(self, root: Path, writer: str = "") -> None:
        """`writer` keeps those apart that may replace the same file at the same time."""
        self._root = root
        self._writer = writer

    def read(self, path: str) -> bytes:
        """See `ports.Storage`."""
        return (self._root / path).read_bytes()

    def replace(self, path: str, data: bytes) -> None:
        """See `ports.Storage`."""
        target = self._root / path
        temporary = target.with_name(f".{target.name}{self._writer}.tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_directory(target.parent)

    def append(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """See `ports.Storage`."""
        target = self._root / path
        created = durable and not target.exists()
        descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if created:
            _sync_directory(target.parent)

    def make_directory(self, path: str) -> bool:
        """See `ports.Storage`."""
        target = self._root / path
        if target.is_dir():
            return False
        target.mkdir(parents=True)
        _sync_directory(target.parent)
        return True

    def local(self, path: str) -> Path:
        """See `ports.Storage`."""
        return self._root / path


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
