"""A storage in memory that loses what was not durable, and cuts off what was being written."""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOSPC, ESTALE
from pathlib import Path
from random import Random

from tests.simulation.outage import Disk


class FakeStorage:
    """See `ports.Storage`. `effect` is called before and after every write, and may end the
    supervisor."""

    def __init__(self, rng: Random, disk: Disk, effect: Callable[[str], None]) -> None:
        self._rng = rng
        self._disk = disk
        self._effect = effect
        self.write_fails = 0.0
        self.content: dict[str, bytes] = {}
        self.durable: dict[str, int] = {}
        """How many bytes of each file survive the death of the machine."""

    def read(self, path: str, limit: int) -> bytes:
        """See `ports.Storage`."""
        self._disk.read(path)
        if path not in self.content:
            raise FileNotFoundError(path)
        assert len(self.content[path]) <= limit
        return self.content[path]

    def replace(self, path: str, data: bytes) -> None:
        """See `ports.Storage`."""
        self._effect(f"before {path} is replaced")
        self._disk.make(path)
        self.content[path] = data
        self.durable[path] = len(data)
        self._effect(f"after {path} was replaced")

    def append(
        self, path: str, data: bytes, *, at: int | None = None, durable: bool = False
    ) -> None:
        """See `ports.Storage`."""
        self._effect(f"before {path} is written")
        self._disk.read(path)
        before = self.content.get(path, b"")
        if at is not None and at != len(before):
            raise OSError(ESTALE, f"it has {len(before)} bytes, not {at}", path)
        torn = self._rng.randrange(len(data) + 1)
        self.content[path] = before + data[:torn]
        self._effect(f"in the middle of writing {path}")
        if not self._disk.takes_little or self._rng.random() < self.write_fails:
            self.content[path] = before
            raise OSError(ENOSPC, "No space left on device", path)
        self.content[path] = before + data
        if durable:
            self._effect(f"before {path} is durable")
            self.durable[path] = len(before) + len(data)
        self._effect(f"after {path} was written")

    def make_directory(self, path: str, *, durable: bool = False) -> bool:
        """See `ports.Storage`."""
        if path in self.content:
            return False
        self._disk.make(path)
        self.content[path] = b""
        return True

    def names(self, path: str) -> list[str]:
        """See `ports.Storage`."""
        below = f"{path}/" if path else ""
        found = (name.removeprefix(below) for name in self.content if name.startswith(below))
        return sorted({name.split("/")[0] for name in found})

    def local_path(self, path: str) -> Path:
        """See `ports.Storage`."""
        return Path("/nowhere") / path

    def lose_power(self) -> None:
        """Let the machine die: of what was not durable, any first part may remain."""
        for path, data in self.content.items():
            durable = self.durable.get(path, 0)
            self.content[path] = data[: self._rng.randint(durable, len(data))]
            self.durable[path] = len(self.content[path])
