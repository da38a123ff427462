"""The files of one step of a checkpoint: their sizes, and digests of their content.

On a disk, a digest needs a read of the file. A bucket lists the MD5 of every object, computed when
the object was uploaded; TLS protects uploads and downloads. So a step in a bucket is verified
without a read. One host could not read all of it anyway, because many hosts have written it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from collections.abc import Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, Protocol, cast

from supervisor.protocol import reading, removal
from trainer import bucket_paths

_ALGORITHMS: dict[str, Any] = {
    "sha256": hashlib.sha256,
    "md5": partial(hashlib.md5, usedforsecurity=False),
}
_CHUNK = 1 << 20


class StepFiles(Protocol):
    """The files below one directory. Their names are paths relative to it."""

    algorithm: str
    """The algorithm of the digests that are cheapest here: a key of `_ALGORITHMS`."""

    def names(self) -> Iterable[str]:
        """Return the names of all files."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size in bytes; None: there is no such file."""
        ...

    def digest(self, name: str, algorithm: str) -> str:
        """Return the digest of the file's content as hex."""
        ...

    def checksum(self, name: str) -> int | None:
        """Return the CRC-32 of the file's content; None: digests cost nothing here, so there is no
        need."""
        ...

    def read(self, name: str, limit: int = reading.SMALL) -> bytes:
        """Return the content of a file of at most `limit` bytes.

        Raises:
            FileNotFoundError: there is no such file.
            UnreadableError: it is too large, or not a regular file.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Write `data` as the content of a file, atomically and durably."""
        ...


def files_in(directory: Path) -> StepFiles:
    """Return the files below `directory`. In a bucket they are listed once, at the first
    question."""
    return _InBucket(directory) if bucket_paths.is_in_bucket(directory) else _OnDisk(directory)


class _OnDisk:
    algorithm = "sha256"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> Iterable[str]:
        paths = (path for path in self._directory.rglob("*") if path.is_file())
        return (str(path.relative_to(self._directory)) for path in paths)

    def size(self, name: str) -> int | None:
        try:
            status = (self._directory / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None  # a FIFO would block

    def digest(self, name: str, algorithm: str) -> str:
        with reading.open_file(self._directory / name, linked=True) as file:
            return _digest(file, algorithm)

    def read(self, name: str, limit: int = reading.SMALL) -> bytes:
        return reading.read(self._directory / name, limit)

    def checksum(self, name: str) -> int | None:
        checksum = 0
        buffer = memoryview(bytearray(_CHUNK))
        with reading.open_file(self._directory / name, linked=True) as file:
            while size := file.readinto(buffer):
                checksum = zlib.crc32(buffer[:size], checksum)
        return checksum

    def replace(self, name: str, data: bytes) -> None:
        temporary = self._directory / f".{name}.tmp"
        with removal.create_temporary(temporary, below=self._directory) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else a power cut can leave an empty file with this name
        temporary.replace(self._directory / name)
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _InBucket:
    algorithm = "md5"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def _objects(self) -> dict[str, bucket_paths.Object]:
        return bucket_paths.objects(self._directory)

    def names(self) -> Iterable[str]:
        return self._objects

    def size(self, name: str) -> int | None:
        found = self._objects.get(name)
        return None if found is None else found.size

    def digest(self, name: str, algorithm: str) -> str:
        known = self._objects[name].md5
        if algorithm == "md5" and known is not None:
            return known
        with (self._directory / name).open("rb") as file:
            return _digest(file, algorithm)

    def checksum(self, name: str) -> int | None:
        return None

    def read(self, name: str, limit: int = reading.SMALL) -> bytes:
        return bucket_paths.read(self._directory / name, limit)

    def replace(self, name: str, data: bytes) -> None:
        (self._directory / name).write_bytes(data)


def _digest(file: IO[bytes], algorithm: str) -> str:
    return hashlib.file_digest(cast(Any, file), _ALGORITHMS[algorithm]).hexdigest()
