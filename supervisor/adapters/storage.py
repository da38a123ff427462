"""The storage port on a local (or mounted) directory."""

from __future__ import annotations

import contextlib
import errno
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
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)

    def append(
        self, path: str, data: bytes, *, at: int | None = None, durable: bool = False
    ) -> None:
        """See `ports.Storage`."""
        target = self._root / path
        new = 0 if at else os.O_CREAT
        descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | new, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if at is not None and size != at:
                raise OSError(errno.ESTALE, f"it has {size} bytes where it should have {at}", path)
            try:
                _write(descriptor, data, durable=durable)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
        if durable and size == 0:
            _sync_directory(target.parent)

    def make_directory(self, path: str, *, durable: bool = False) -> bool:
        """See `ports.Storage`."""
        target = self._root / path
        if target.is_dir():
            return False
        target.mkdir(parents=True)
        if durable:
            _sync_directory(target.parent)
        return True

    def local(self, path: str) -> Path:
        """See `ports.Storage`."""
        return self._root / path


def _write(descriptor: int, data: bytes, *, durable: bool) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    if durable:
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
