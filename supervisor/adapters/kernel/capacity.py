"""Measures what of this host is free or in use: memory, CPU time, ports."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Returns the bytes of memory that a new process can get, on this host and in this container.

    A container's file cache counts as free, because the kernel gives it up when memory is needed.
    """
    free: int = psutil.virtual_memory().available
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no container, or cgroup v1: the host's number is the bound
        return free
    held = used - int(stat.get("inactive_file", 0)) - int(stat.get("active_file", 0))
    return free if limit == "max" else min(free, max(0, int(limit) - held))


def resident_memory(pid: int) -> int:
    """Returns the bytes of memory that a process and its descendants hold.

    Memory that they share is counted once for each of them. Those that end during the count are
    left out. Returns 0 if all are gone.
    """
    total = 0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
    return total


def ran_and_waited(pid: int) -> tuple[int, int]:
    """Returns the nanoseconds for which the live threads of a process have run, and have waited for
    a CPU.

    Both are 0 if the kernel does not count them, or if the process is gone.
    """
    ran = waited = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            on_cpu, in_queue, _ = path.read_text().split()
            ran += int(on_cpu)
            waited += int(in_queue)
    return ran, waited


def free_ports(count: int) -> tuple[int, ...]:
    """Returns `count` different ports that are free now. Each attempt's workers use new ports.

    Another program may take a port before a worker binds it. Then the attempt fails with `Failed to
    start RPC server`, and the next attempt gets another port.

    Raises:
        OSError: there are not enough free ports.
    """
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return tuple(server.getsockname()[1] for server in servers)
