"""The storage port on a local (or mounted) directory."""

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
    """Files below `root`, and never elsewhere: a path that is absolute or has `..` in it is
    refused, and no link below `root` is followed. Whatever is durable has its directory entry
    synced as well."""

    def __init__(self, root: Path, writer: str = "") -> None:
        """`writer` keeps those apart that may replace the same file at the same time."""
        self._root = root
        self._writer = writer

    def read(self, path: str, limit: int) -> bytes:
        """See `ports.Storage`."""
        return read(self.local(path), limit, below=self._root)

    def replace(self, path: str, data: bytes) -> None:
        """See `ports.Storage`."""
        target = self.local(path)
        temporary = target.with_name(f".{target.name}{self._writer}.tmp")
        try:
            with removal.temporary(temporary, below=self._root) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError:
            with contextlib.suppress(OSError):
                removal.file(Place.TEMPORARY, temporary, below=self._root)
            raise
        _sync_directory(target.parent)

    def append(
        self, path: str, data: bytes, *, at: int | None = None, durable: bool = False
    ) -> None:
        """See `ports.Storage`."""
        target = self.local(path)
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
            for name in self.local(path).relative_to(self._root).parts:
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
                folder = descriptor_of(self.local(path), self._root, _LISTED)
            else:
                folder = os.open(self._root, _LISTED & ~os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            with os.scandir(folder) as entries:
                return [entry.name for entry in entries]
        finally:
            os.close(folder)

    def local(self, path: str) -> Path:
        """See `ports.Storage`."""
        if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise OSError(errno.EINVAL, f"{path!r} is no path below {self._root}", path)
        return self._root / path


def _made(name: str, folder: int, *, durable: bool) -> bool:
    """Make the directory `name` in the open one `folder`; False: it is there already."""
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return False
    if durable:
        with contextlib.suppress(PermissionError):  # it may be written, but not be opened
            _sync_directory(".", folder)
    return True


def _write(descriptor: int, data: bytes, *, durable: bool) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    if durable:
        os.fsync(descriptor)


def make_durably(directory: Path, sync: Callable[[Path], None] | None = None) -> None:
    """Make a directory and those above it that are missing, so that none is lost in a crash.

    `sync` writes the entries of a directory to the disk; None: as the kernel does it.
    """
    if directory.is_dir():
        return
    missing = takewhile(lambda each: not each.exists(), directory.parents)
    for each in (*reversed(list(missing)), directory):
        each.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):  # it may be written, but not be opened
            (sync or _sync_directory)(each.parent)


def _sync_directory(directory: Path | str, folder: int | None = None) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
