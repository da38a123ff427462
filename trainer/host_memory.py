"""How much memory is available, from the host and from the cgroup of this process.

A program that takes more than its cgroup's limit gets no error that it could handle: the kernel
kills a process instead. So we ask before we take it.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/")


def available(root: Path = _ROOT) -> int:
    """Return the available bytes. The kernel's file cache counts as free, because the kernel gives
    it up on demand."""
    free = _table(root / "proc/meminfo")["MemAvailable:"] * 1024
    cgroup = root / "sys/fs/cgroup" / _own_cgroup(root)
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        kept = _table(cgroup / "memory.stat")
    except (OSError, ValueError):  # no limit of its own ("max"), or cgroups v1
        return free
    return min(free, limit - used + kept["active_file"] + kept["inactive_file"])


def _own_cgroup(root: Path) -> str:
    """Return the path of the cgroup below the root that this process sees; in a container: the
    root."""
    lines = (root / "proc/self/cgroup").read_text().splitlines()
    return next((line[3:] for line in lines if line.startswith("0::")), "/").lstrip("/")


def _table(path: Path) -> dict[str, int]:
    """Parse lines that consist of a name and a number."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows}
