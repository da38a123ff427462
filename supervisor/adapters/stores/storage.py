"""Implements `ports.Storage` on a local or mounted directory."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

from supervisor.files.writing import opened
from supervisor.protocol import removal
from supervisor.protocol.reading import descriptor_of, read
from supervisor.protocol.removal import Place

_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalStorage:
    """Files below `root`, and only there. It refuses a path that is absolute or contains `..`, and
    follows no link below `root`. A durable write also syncs the directory entry of a new file."""

    def __init__(self, root: Path, writer: str = "") -> None:
        """`writer` is part of the names of temporary files: two storages that may replace the same
        file at the same time need different ones."""
        self._root = root
        self._writer = writer

    def read(self, path: str, limit: int) -> bytes:
        """See `ports.Storage`."""
        return read(self.local_path(path), limit, below=self._root)

    def replace(self, path: str, data: bytes) -> None:
        """See `ports.Storage`."""
        target = self.local_path(path)
        temporary = target.with_name(f".{target.name}{self._writer}.tmp")
        try:
            with removal.create_temporary(temporary, below=self._root) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError:
            with contextlib.suppress(OSError):
                removal.remove_file(Place.TEMPORARY, temporary, below=self._root)
            raise
        _sync_directory(target.parent)

    def append(
        self, path: str, data: bytes, *, at: int | None = None, durable: bool = False
    ) -> None:
        """See `ports.Storage`."""
        target = self.local_path(path)
        with opened(target, create=not at, below=self._root) as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            if at is not None and size != at:
                raise OSError(errno.ESTALE, f"it has {size} bytes where it should have {at}", path)
            try:
                _write(descriptor, data, durable=durable)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        if durable and size == 0:
            _sync_directory(target.parent)

    def make_directory(self, path: str, *, durable: bool = False) -> bool:
        """See `ports.Storage`."""
        made = False
        here = os.open(self._root, _FOLDER & ~os.O_NOFOLLOW)
        try:
            for name in self.local_path(path).relative_to(self._root).parts:
                made = _made(name, here, durable=durable)
                above, here = here, os.open(name, _FOLDER, dir_fd=here)
                os.close(above)
        finally:
            os.close(here)
        return made

    def names(self, path: str) -> list[str]:
        """See `ports.Storage`."""
        try:
            if path:
                folder = descriptor_of(self.local_path(path), self._root, _LISTED)
            else:
                folder = os.open(self._root, _LISTED & ~os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            with os.scandir(folder) as entries:
                return [entry.name for entry in entries]
        finally:
            os.close(folder)

    def local_path(self, path: str) -> Path:
        """See `ports.Storage`."""
        if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise OSError(errno.EINVAL, f"{path!r} is no path below {self._root}", path)
        return self._root / path


def _made(name: str, folder: int, *, durable: bool) -> bool:
    """Make the directory `name` in the open directory `folder`. False if it is there already."""
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return False
    if durable:
        with contextlib.suppress(PermissionError):  # we may write to it, but not open it
            _sync_directory(".", folder)
    return True


def _write(descriptor: int, data: bytes, *, durable: bool) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    if durable:
        os.fsync(descriptor)


def make_durably(directory: Path, sync: Callable[[Path], None] | None = None) -> None:
    """Make a directory and the missing ones above it, so that a crash loses none of them.

    `sync` writes the entries of a directory to the disk; None: use `fsync`.
    """
    if directory.is_dir():
        return
    missing = takewhile(lambda each: not each.exists(), directory.parents)
    for each in (*reversed(list(missing)), directory):
        each.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):  # we may write to it, but not open it
            (sync or _sync_directory)(each.parent)


def _sync_directory(directory: Path | str, folder: int | None = None) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
