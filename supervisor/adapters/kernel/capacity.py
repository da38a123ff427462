"""What of this host is free: memory, the CPU, ports."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_memory(cgroup: Path = _CGROUP) -> int:
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


def resident_memory(pid: int) -> int:
    """Bytes that a process and its descendants hold, what they share counted for each; 0 once it
    is gone."""
    try:
        process = psutil.Process(pid)
        group = [process, *process.children(recursive=True)]
        return sum(one.memory_info().rss for one in group)
    except psutil.NoSuchProcess:
        return 0


def ran_and_waited(pid: int) -> tuple[int, int]:
    """Nanoseconds for which the living threads of a process have run, and have waited to run.

    Both 0 where the kernel does not count them, or the process is gone.
    """
    ran = waited = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            on_cpu, in_queue, _ = path.read_text().split()
            ran += int(on_cpu)
            waited += int(in_queue)
    return ran, waited


def free_ports(count: int) -> tuple[int, ...]:
    """So many different ports that are free now: each attempt's workers meet at another one.

    Between this moment and the one that a worker binds it, somebody else may take it. Then the
    attempt fails of `Failed to start RPC server`, and the next one has another port.

    Raises:
        OSError: there are not so many.
    """
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return tuple(server.getsockname()[1] for server in servers)
