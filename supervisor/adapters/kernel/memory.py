"""How much memory there still is for another process."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available(cgroup: Path = _CGROUP) -> int:
    """Bytes that this host, and the container that this may be, can still give.

    What files hold of a container's memory is given up when it is needed.
    """
    free: int = psutil.virtual_memory().available
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no container's, or the old kind, which the host's number bounds
        return free
    held = used - int(stat.get("inactive_file", 0)) - int(stat.get("active_file", 0))
    return free if limit == "max" else min(free, max(0, int(limit) - held))


def resident(pid: int) -> int:
    """Bytes that a process and its descendants hold, what they share counted for each; 0 once it
    is gone."""
    try:
        process = psutil.Process(pid)
        group = [process, *process.children(recursive=True)]
        return sum(one.memory_info().rss for one in group)
    except psutil.NoSuchProcess:
        return 0
