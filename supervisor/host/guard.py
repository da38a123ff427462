"""The guard: a tiny process that outlives a supervisor killed by SIGKILL and kills what is left.

Parent death reaches the workers, but not what a worker started, least of all in a session of its
own. Once the supervisor is dead all of that belongs to init, and only one thing still tells whose
it was: the mark of the supervisor's instance in its environment. No other instance has that mark,
so a guard that is still at it can never hit what the next supervisor of the same job has started.

It is run as a program of its own, by a bare interpreter that imports next to nothing (see
`supervisor/adapters/guard.py`), and is told on its standard input, line by line:

    mark TEXT        what the job's processes have in their environment
    within SECONDS   kill them unless this is said again in that time (the lease on shared storage)
    kill             kill them now

The end of its input is the end of the supervisor.
"""

import os
import select
import time

_PAUSE = 0.01
_LONGEST_WAIT = 5.0
"""Of one `select`: its clock stands still while the machine sleeps, a lease does not."""


def marked(*marks: bytes) -> list[tuple[int, int]]:
    """The processes with one of `marks` in their environment: pid, and a pidfd to be closed.

    The descriptor is opened before the environment is read: whatever then happens to the pid, it
    means the process that was looked at, or none.
    """
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 (pathlib costs the guard a megabyte)
        if not name.isdecimal():
            continue
        try:
            descriptor = os.pidfd_open(int(name))
        except OSError:  # it is gone
            continue
        if any(mark in _environment(name) for mark in marks):
            found.append((int(name), descriptor))
        else:
            os.close(descriptor)
    return found


def kill(*marks: bytes) -> int:
    """SIGKILL every process with one of `marks`; returns how many there were."""
    import signal  # here, because it costs an idle guard another megabyte

    killed = 0
    for _, descriptor in marked(*marks):
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            killed += 1
        except OSError:  # it is gone, or another user's, which we could not have started
            pass
        os.close(descriptor)
    return killed


def guard(descriptor: int) -> None:
    """Do as is said on `descriptor`, and after its end kill until nothing is left."""
    mark = b""
    deadline: float | None = None
    rest = b""
    while True:
        if deadline is not None and _now() >= deadline:
            _kill_all(mark)
            deadline = _now() + 1.0  # and again, until the lease is renewed
        if not select.select([descriptor], [], [], _patience(deadline))[0]:
            continue
        chunk = os.read(descriptor, 4096)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            word, _, value = line.partition(b" ")
            if word == b"mark":
                mark = value
            elif word == b"within":
                deadline = _now() + float(value)
            elif word == b"kill":
                _kill_all(mark)
    _kill_all(mark)


def _kill_all(mark: bytes) -> None:
    """Kill until a look at all processes finds none: what is killed may just have forked."""
    pause = _PAUSE
    while mark and kill(mark):
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def _environment(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 (as above)
            return b"\0" + file.read() + b"\0"
    except OSError:  # it is gone, or not ours
        return b""


def _patience(deadline: float | None) -> float | None:
    return None if deadline is None else min(max(0.0, deadline - _now()), _LONGEST_WAIT)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what our own parents left open
    guard(0)
