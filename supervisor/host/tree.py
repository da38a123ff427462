"""The processes below a process, from the kernel's own lists, and signals that hit nobody else.

A pid can be used again once its process was reaped. So we open a pidfd first and check afterwards
whose child the process is: the signal goes to the process that was checked, or to none. The guard
runs this too, so it imports next to nothing.
"""

import _signal  # type: ignore[import-not-found]  # `signal` costs the guard a megabyte
import os

_LISTS_CHILDREN = os.path.exists("/proc/thread-self/children")  # noqa: PTH110 (see above)
_PF_EXITING = 0x4
STOPPED, GONE = "Tt", "ZX"
"""States of a process (`Stat.state`): pathlib and enum would cost the guard a megabyte each."""


class Stat:
    """Facts from /proc/PID/stat."""

    __slots__ = ("flags", "parent", "session", "started", "state")

    def __init__(self, state: str, parent: int, session: int, started: int, flags: int = 0) -> None:
        """`started` is in clock ticks since boot: with the pid it names a process. `flags` are the
        kernel's (PF_*)."""
        self.flags = flags
        self.state = state
        self.parent = parent
        self.session = session
        self.started = started


def stat(pid: int) -> Stat | None:
    """Return the facts of a process or zombie; None: it is gone, and was reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (as above)
            fields = file.read().rpartition(b")")[2].split()  # its name may hold anything
    except OSError:
        return None
    return Stat(fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]), int(fields[6]))


def lives(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    seen = stat(pid)
    return seen is not None and seen.state not in GONE


def works(pid: int) -> bool:
    """Whether the process lives and is not being ended by the kernel.

    The kernel closes the files of a process that ends before it becomes a zombie.
    """
    seen = stat(pid)
    return seen is not None and seen.state not in GONE and not seen.flags & _PF_EXITING


def pids() -> list[int]:
    """Return the pids of all processes in this pid namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def children(pid: int) -> list[int]:
    """Return the pids of a process's children, zombies included.

    The kernel's list may lack a child while another one is being reaped. So the list is complete
    only if a process reads its own, in the thread that reaps.
    """
    if not _LISTS_CHILDREN:
        return [one for one in pids() if (seen := stat(one)) is not None and seen.parent == pid]
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    except OSError:  # it is gone, or one of its threads
        pass
    return found


def descendants(root: int, spared: "set[int] | frozenset[int]") -> list[tuple[int, Stat]]:
    """Return all processes below `root`, except those in a session of `spared` and all below
    them."""
    found = []
    parents = [root]
    while parents:
        for child in children(parents.pop()):
            seen = stat(child)
            if seen is not None and seen.session not in spared:
                found.append((child, seen))
                parents.append(child)
    return found


def send(pid: int, seen: Stat, number: int) -> bool:
    """Send a signal to the process that was `seen`; False: it is gone, or not ours to signal."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        now = stat(pid)
        if now is None or now.started != seen.started:
            return False
        _signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def kill_children(spared: "set[int] | frozenset[int]") -> int:
    """SIGKILL all processes below this one (see `descendants`) without waiting; returns how many
    there were. A killed process may just have forked: only 0 means that nothing is left.

    Call it in the thread that reaps our children: then no pid can pass to another process, and a
    process that hides by forking and exiting all the time is killed as soon as it is listed.
    """
    for pid in children(os.getpid()):
        try:
            if os.getsid(pid) not in spared:
                os.kill(pid, _signal.SIGKILL)
        except OSError:  # it is gone, or another user's; the others die all the same
            continue
    found = descendants(os.getpid(), spared)
    for pid, seen in found:
        send(pid, seen, _signal.SIGKILL)
    return len(found)


def stop(root: int, spared: "set[int] | frozenset[int]") -> tuple[list[tuple[int, Stat]], int]:
    """SIGSTOP all processes below `root`; returns those that were sent it, and how many of all
    still run."""
    sent, running = [], 0
    for pid, seen in descendants(root, spared):
        if seen.state not in STOPPED + GONE:
            running += 1
            if send(pid, seen, _signal.SIGSTOP):
                sent.append((pid, seen))
    return sent, running
