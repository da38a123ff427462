"""A bucket in memory: implements the port `Objects`, with faults by plan."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable

from supervisor.ports import MAX_OBJECT, ConflictError, Listing, StoredObject
from supervisor.protocol.reading import UnreadableError


class MemoryObjects:
    """Objects below one place. Before each operation `fault` is called with its name and path, and
    returns the error to raise, or None. `calls` counts the operations."""

    def __init__(self) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.fault: Callable[[str, str], OSError | None] = lambda operation, path: None
        self.calls: Counter[str] = Counter()
        self._versions = itertools.count(1)
        self._lock = threading.Lock()

    def read(self, path: str, limit: int = MAX_OBJECT) -> StoredObject:
        """See `ports.Objects`."""
        self._called("read", path)
        with self._lock:
            if path not in self.objects:
                raise FileNotFoundError(path)
            if len(self.objects[path].data) > limit:
                raise UnreadableError(path, f"has more than {limit} bytes")
            return self.objects[path]

    def write(self, path: str, data: bytes, *, expected: str | None = None) -> str:
        """See `ports.Objects`."""
        self._called("write", path)
        with self._lock:
            there = self.objects.get(path)
            if expected is not None and expected != (there.version if there else ""):
                raise ConflictError(f"{path} is another version")
            version = str(next(self._versions))
            self.objects[path] = StoredObject(bytes(data), version)
            return version

    def delete(self, path: str) -> None:
        """See `ports.Objects`."""
        self._called("delete", path)
        with self._lock:
            self.objects.pop(path, None)

    def exists(self, path: str) -> bool:
        """See `ports.Objects`."""
        self._called("exists", path)
        return path in self.objects

    def list(self, path: str) -> Listing:
        """See `ports.Objects`."""
        self._called("list", path)
        prefix = f"{path}/" if path else ""
        objects, folders = {}, set()
        with self._lock:
            for name, stored in self.objects.items():
                if name.startswith(prefix):
                    first, slash, _ = name.removeprefix(prefix).partition("/")
                    if slash:
                        folders.add(first)
                    else:
                        objects[first] = len(stored.data)
        return Listing(objects, frozenset(folders))

    def _called(self, operation: str, path: str) -> None:
        self.calls[operation] += 1
        if (error := self.fault(operation, path)) is not None:
            raise error
