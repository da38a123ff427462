"""Makes room on a full disk: what is kept only for people goes first, oldest first.

A full disk must not end a job that could go on. What may go is the output of attempts that are
over; their failure records, the journal and the checkpoints never do.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from supervisor.ports import Storage

_FULL = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")


def free_bytes(path: Path) -> int | None:
    """What the disk of `path` has room for; None where it cannot be asked."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


class Space:
    """What can be deleted of a model_dir."""

    def __init__(self, model_dir: Path, tell: Callable[[str], None]) -> None:
        self._model_dir = model_dir
        self._tell = tell
        self.in_use: Callable[[], Path | None] = lambda: None
        """The directory of the attempt that runs; its output is kept."""

    def free(self) -> bool:
        """Delete the output of the oldest attempt that has any; False if none can be deleted."""
        for directory in self._attempts():
            freed = 0
            for path in directory.glob("rank*.log"):
                try:
                    size = path.stat().st_size
                    path.unlink()
                    freed += size
                except OSError:
                    continue
            if freed:
                number = int(directory.name)
                self._tell(f"the disk is full: deleted the output of attempt {number}: {freed} B")
                return True
        return False

    def _attempts(self) -> Iterator[Path]:
        in_use = self.in_use()
        for directory in sorted(
            self._model_dir.glob("*_restartable/attempts/*"), key=lambda path: path.name
        ):
            if directory != in_use and directory.name.isdecimal():
                yield directory


class RoomMakingStorage:
    """A storage that frees space and tries again where the disk is full."""

    def __init__(self, storage: Storage, space: Space) -> None:
        self._storage = storage
        self._space = space

    def read(self, path: str) -> bytes:
        """See `ports.Storage`."""
        return self._storage.read(path)

    def replace(self, path: str, data: bytes) -> None:
        """See `ports.Storage`."""
        self._with_room(lambda: self._storage.replace(path, data))

    def append(
        self, path: str, data: bytes, *, at: int | None = None, durable: bool = False
    ) -> None:
        """See `ports.Storage`."""
        self._with_room(lambda: self._storage.append(path, data, at=at, durable=durable))

    def make_directory(self, path: str, *, durable: bool = False) -> bool:
        """See `ports.Storage`."""
        return self._with_room(lambda: self._storage.make_directory(path, durable=durable))

    def local(self, path: str) -> Path:
        """See `ports.Storage`."""
        return self._storage.local(path)

    def _with_room(self, write: Callable[[], T]) -> T:
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in _FULL or not self._space.free():
                    raise
