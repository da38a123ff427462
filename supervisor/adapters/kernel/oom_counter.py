"""Reads the kernel's count of processes that it killed because a cgroup ran out of memory.

SIGKILL does not show who sent it, and container runtimes do not reliably show it either
(`OOMKilled` stays false for a process that is not the container's first). The kernel's counter
does: it is in `memory.events` in cgroup v2, and in `memory.oom_control` in v1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from supervisor.host.cgroups import mounted

_ROOT = Path("/")


_UNLIMITED = 1 << 60
"""Bytes: cgroup v1 has a larger number for "no limit"."""


class OomCounter:
    """Counts the out-of-memory kills in the cgroup of a process from now on."""

    def __init__(self, pid: int, root: Path = _ROOT) -> None:
        """The process `pid` must be alive now; the count goes on after it has died."""
        self._file = _counter_file(pid, root)
        self._before = self._read()

    def rise(self) -> int | None:
        """Returns the number of kills since this object was made; None: they are not counted."""
        before, now = self._before, self._read()
        return None if before is None or now is None else max(0, now - before)

    @property
    def memory_limit(self) -> int | None:
        """The bytes of memory that the cgroup, or one above it, allows; None: no limit is seen."""
        folder = self._file.parent if self._file is not None else None
        found: list[int] = []
        while folder is not None and folder != folder.parent:
            for name in ("memory.max", "memory.limit_in_bytes"):
                with suppress(OSError, ValueError):  # there is none, or it is `max`
                    found.append(int((folder / name).read_text()))
            folder = folder.parent
        return min((limit for limit in found if limit < _UNLIMITED), default=None)

    def _read(self) -> int | None:
        if self._file is None:
            return None
        try:
            lines = self._file.read_text().splitlines()
        except OSError:
            return None
        counts = (line.split() for line in lines)
        return next((int(words[1]) for words in counts if words[0] == "oom_kill"), None)


def _counter_file(pid: int, root: Path) -> Path | None:
    """Returns the file that counts the kills in the cgroup of `pid`; None: there is none (the root
    cgroup, or an old kernel)."""
    try:
        memberships = (root / "proc" / str(pid) / "cgroup").read_text().splitlines()
        mounts = (root / "proc" / str(pid) / "mountinfo").read_text().splitlines()
    except OSError:
        return None
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if "memory" in controllers.split(","):
            found = (
                f"{place}/memory.oom_control" for place in mounted(mounts, "cgroup", "memory", path)
            )
        elif not controllers:
            found = (f"{place}/memory.events" for place in _with_ancestors(mounts, path))
        else:
            continue
        for file in found:
            if (root / file.lstrip("/")).exists():
                return root / file.lstrip("/")
    return None


def _with_ancestors(mounts: list[str], path: str) -> Iterator[str]:
    """Yields the folders of the cgroup `path`, then of each cgroup above it.

    If `path` has no memory controller, the nearest cgroup above it that has one counts for it.
    """
    for each in (path, *map(str, PurePosixPath(path).parents)):
        yield from mounted(mounts, "cgroup2", "", each)
