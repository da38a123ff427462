"""How much memory the host, and the cgroup that this process is in, can still give.

A claim beyond a cgroup's limit is no error that a program could answer: the kernel kills somebody
for it. So it is asked for first.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/")


def available(root: Path = _ROOT) -> int:
    """Bytes. What the kernel keeps of files counts as free, because it gives that up when asked."""
    free = _table(root / "proc/meminfo")["MemAvailable:"] * 1024
    cgroup = root / "sys/fs/cgroup" / _own_cgroup(root)
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        kept = _table(cgroup / "memory.stat")
    except (OSError, ValueError):  # it has no limit of its own ("max"), or is of the old kind
        return free
    return min(free, limit - used + kept["active_file"] + kept["inactive_file"])


def _own_cgroup(root: Path) -> str:
    """Its path below the root that this process sees; in a container that is the root itself."""
    lines = (root / "proc/self/cgroup").read_text().splitlines()
    return next((line[3:] for line in lines if line.startswith("0::")), "/").lstrip("/")


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows}
