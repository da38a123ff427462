"""The processes below a process, from the kernel's own lists, and signals that hit nobody else.

A number means another process once its owner was waited for. So a descriptor of the process is
opened first, and only then it is looked at whose child it is: the signal goes to the one that was
looked at, or to none. The guard runs this too, so it imports next to nothing.
"""

import _signal  # type: ignore[import-not-found]  # `signal` costs the guard a megabyte
import os

_LISTS_CHILDREN = os.path.exists("/proc/thread-self/children")  # noqa: PTH110 (see above)
STOPPED, GONE = "Tt", "ZX"
"""States of a process (`Stat.state`): pathlib and enum would cost the guard a megabyte each."""


class Stat:
    """What the kernel tells of a process."""

    __slots__ = ("parent", "session", "started", "state")

    def __init__(self, state: str, parent: int, session: int, started: int) -> None:
        """`started` is in clock ticks since boot: with the pid it names a process."""
        self.state = state
        self.parent = parent
        self.session = session
        self.started = started


def stat(pid: int) -> Stat | None:
    """What there is to know of a process; None: there is none, or no zombie of it, any more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (as above)
            fields = file.read().rpartition(b")")[2].split()  # its name may hold anything
    except OSError:
        return None
    return Stat(fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def lives(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    seen = stat(pid)
    return seen is not None and seen.state not in GONE


def pids() -> list[int]:
    """All processes of this pid namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def children(pid: int) -> list[int]:
    """The children of a process, the dead ones too that it has not waited for.

    The kernel's list may lack one while another one is waited for. So only what a process sees of
    its own children, in the thread that waits for them, is complete.
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
    """All below `root`, but for what is in one of the sessions `spared`, and what is below that."""
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
    """SIGKILL what is below this process (see `descendants`), and wait for nothing; returns how
    many there were. What is killed may just have forked: nothing is left once this returns 0.

    To be called in the thread that waits for our children: nobody else's can be hit then, and one
    that hides by forking and ending all the time is hit the moment that it is listed.
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
    """SIGSTOP what is below `root`; returns those to which it was sent, and how many run yet."""
    sent, running = [], 0
    for pid, seen in descendants(root, spared):
        if seen.state not in STOPPED + GONE:
            running += 1
            if send(pid, seen, _signal.SIGSTOP):
                sent.append((pid, seen))
    return sent, running
