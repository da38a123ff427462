"""Cgroups (v2) of our own: a process cannot leave one without permission, whatever it forks.

Nothing is limited or counted by them, so no controller is enabled, and a cgroup that has processes
itself may have others below it. The guard runs this too, so it imports next to nothing.
"""

import _signal  # type: ignore[import-not-found]  # `signal` costs the guard a megabyte
import os
from collections.abc import Iterator


def mounted(mounts: list[str], kind: str, option: str, path: str) -> Iterator[str]:
    """Yield the folders of the cgroup `path`, found in the lines `mounts` of a mountinfo file: one
    for each hierarchy of type `kind` (`cgroup2`, or `cgroup` with `option`) that shows it."""
    for mount in mounts:
        place, _, source = mount.partition(" - ")
        fields, (found, _, options) = place.split(), source.split(" ", 2)
        top, mount_point = fields[3].rstrip("/"), fields[4]
        here = path == top or path.startswith(f"{top}/")
        if found == kind and here and (not option or option in options.strip().split(",")):
            yield mount_point.replace("\\040", " ").rstrip("/") + path[len(top) :].rstrip("/")


def own() -> list[str]:
    """Return the folders of our own cgroup; as a rule there is one, or none."""
    try:
        with open("/proc/self/cgroup") as file:  # noqa: PTH123 (pathlib costs the guard a megabyte)
            lines = [line.rstrip("\n") for line in file if line.startswith("0::/")]
        with open("/proc/self/mountinfo") as file:  # noqa: PTH123
            mounts = file.readlines()
    except OSError:
        return []
    paths = [line[len("0::") :] for line in lines if ".." not in line]
    return [place for path in paths for place in mounted(mounts, "cgroup2", "", path)]


def mounts() -> list[str]:
    """Return the mount points of cgroups v2."""
    try:
        with open("/proc/self/mountinfo") as file:  # noqa: PTH123
            lines = [line for line in file if " - cgroup2 " in line]
    except OSError:
        return []
    return [line.split()[4].replace("\\040", " ") for line in lines]


def made(name: str) -> str | None:
    """Create the cgroup `name` below our own, and return its path; None: it cannot be created."""
    for place in own():
        path = f"{place}/{name}"
        try:
            os.mkdir(path)  # noqa: PTH102
        except OSError:  # as a rule read-only, as in a container, or owned by another user
            continue
        if os.access(f"{path}/cgroup.procs", os.W_OK) and _may_join(place):
            return path
        remove(path)
    return None


def _may_join(place: str) -> bool:
    """Whether a process of ours may leave the cgroup `place` for one below it."""
    return os.access(f"{place}/cgroup.procs", os.W_OK)


def join(path: str) -> None:
    """Move this process, and with it what it starts from now on, to the cgroup `path`.

    Raises:
        OSError: the kernel refuses.
    """
    _write(f"{path}/cgroup.procs", b"0")


def kill(path: str) -> None:
    """SIGKILL all processes in the cgroup `path` and below it, also one that is being forked now.
    Does nothing if there is no such cgroup."""
    if not _told(f"{path}/cgroup.kill", b"1"):  # it is gone, or the kernel is older than 5.14
        _kill_one_by_one(path)


def populated(path: str) -> bool:
    """Whether a process lives in the cgroup `path`, or below it."""
    try:
        with open(f"{path}/cgroup.events") as file:  # noqa: PTH123
            return "populated 1" in file.read()
    except OSError:  # it is gone
        return False


def members(path: str) -> list[int]:
    """The processes in the cgroup `path` and below it."""
    found: list[int] = []
    for folder, _, _ in os.walk(path):
        try:
            with open(f"{folder}/cgroup.procs") as file:  # noqa: PTH123
                found += map(int, file.read().split())
        except OSError:  # it is gone
            continue
    return found


def remove(path: str) -> None:
    """Remove the cgroup `path` with those below it, as far as nothing lives in them."""
    for folder, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(folder)  # noqa: PTH106
        except OSError:  # populated, or gone
            continue


def _kill_one_by_one(path: str) -> None:
    """Kill without `cgroup.kill`: freeze all first, so that none forks. Frozen ones do die."""
    _told(f"{path}/cgroup.freeze", b"1")  # by a kernel since 5.2
    for pid in members(path):
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if pid in members(path):  # so the pidfd is of a member, not of a later process
                _signal.pidfd_send_signal(pidfd, _signal.SIGKILL)
        except OSError:  # it is gone
            pass
        finally:
            os.close(pidfd)


def _told(path: str, text: bytes) -> bool:
    try:
        _write(path, text)
    except OSError:
        return False
    return True


def _write(path: str, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
