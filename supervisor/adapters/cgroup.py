"""The kernel's own count of processes that it killed because memory ran out in a cgroup.

SIGKILL says nothing about who sent it, and container runtimes do not reliably say it either
(`OOMKilled` stays false for a process that is not the container's first). The counter does:
`memory.events` in cgroup v2, `memory.oom_control` in v1.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/")


class OomCounter:
    """Counts the out-of-memory kills in the cgroup of a process from now on."""

    def __init__(self, pid: int, root: Path = _ROOT) -> None:
        """The process must live; what comes later is counted although it is dead."""
        self._file = _counter_file(pid, root)
        self._before = self._read()

    def rise(self) -> int:
        """How many there were; 0 also where nobody counts."""
        before, now = self._before, self._read()
        return 0 if before is None or now is None else max(0, now - before)

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
    """Where the cgroup of `pid` counts; None where it does not (the root cgroup, an old kernel)."""
    try:
        memberships = (root / "proc" / str(pid) / "cgroup").read_text().splitlines()
        mounts = (root / "proc" / str(pid) / "mountinfo").read_text().splitlines()
    except OSError:
        return None
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if "memory" in controllers.split(","):
            file = _below_mount(mounts, "cgroup", "memory", path, "memory.oom_control")
        elif not controllers:
            file = _below_mount(mounts, "cgroup2", "", path, "memory.events")
        else:
            continue
        if file is not None and (root / file).exists():
            return root / file
    return None


def _below_mount(mounts: list[str], kind: str, option: str, path: str, name: str) -> Path | None:
    """The file `name` of the cgroup `path`, relative to the root of the file system."""
    for mount in mounts:
        place, _, source = mount.partition(" - ")
        fields, (found, _, options) = place.split(), source.split(" ", 2)
        top, mount_point = fields[3].rstrip("/"), fields[4]
        here = path == top or path.startswith(f"{top}/")
        if found == kind and here and (not option or option in options.split(",")):
            return Path(f"{mount_point}{path[len(top) :]}/{name}".lstrip("/"))
    return None
