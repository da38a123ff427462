"""Whether a process has to wait for the CPU, which tells that it takes it from others."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


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
