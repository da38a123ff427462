"""Checks of this machine: cgroup, clocks, and the files that every job needs."""

from __future__ import annotations

import os
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import supervisor
from supervisor.adapters.kernel.capacity import available_memory
from supervisor.adapters.kernel.clock_watch import read_clocks
from supervisor.adapters.kernel.oom_counter import OomCounter
from supervisor.adapters.platforms.tpu_lock import LOCK
from supervisor.config.quantities import size_text
from supervisor.core.clock_jump import ClockReading
from supervisor.doctor.examination import Finding, note, ok, wrong
from supervisor.engines.ahead.standby_pool import IMPORTS_NEED
from supervisor.engines.holders import lock_in_the_way
from supervisor.host import cgroups

CGROUP, CLOCK, PERMISSIONS = "cgroup", "clock", "permissions"
_MAX_SKEW = 60.0
"""Seconds by which a file may seem to be of the future."""
_NULL = os.makedev(1, 3)
_DEV_NULL = Path(os.devnull)


def cgroup() -> Iterator[Finding]:
    """Yields what the kernel limits and counts, and whether processes can be held together."""
    counter = OomCounter(os.getpid())
    free, limit = available_memory(), counter.memory_limit
    bound = f"limit {size_text(limit)}" if limit is not None else "no limit"
    memory = f"memory: {bound}, {size_text(free)} available"
    if free < IMPORTS_NEED:
        yield note(CGROUP, memory, "a job has no standby with less than 1 GiB: free some memory")
    else:
        yield ok(CGROUP, memory)
    if counter.rise() is None:
        yield note(
            CGROUP,
            "kills for lack of memory are not counted here (no memory.events or "
            "memory.oom_control): such a kill looks like any other SIGKILL",
            "if a rank dies of SIGKILL, look at dmesg",
        )
    else:
        yield ok(CGROUP, "kills for lack of memory are counted")
    made = cgroups.made(f"supervise-doctor-{uuid.uuid4().hex}")
    if made is not None:
        cgroups.remove(made)
        yield ok(CGROUP, "a job can have a cgroup of its own")
    else:
        yield note(
            CGROUP,
            "no cgroup can be made: the guard alone holds the processes of a job together",
            "under systemd: Delegate=yes in the unit; in a container this is usual",
        )


def clock(
    wall: Callable[[], float] = time.time, clocks: Callable[[], ClockReading] = read_clocks
) -> Iterator[Finding]:
    """Yields whether the wall clock can be right, and whether this machine has slept."""
    installed = Path(supervisor.__file__).stat().st_mtime
    now, read = wall(), clocks()
    if installed > now + _MAX_SKEW:
        yield wrong(
            CLOCK,
            f"the clock says {_shown(now)}, before supervise was installed ({_shown(installed)})",
            "set the clock: timedatectl set-ntp true, or chronyc makestep",
        )
    else:
        yield ok(CLOCK, f"the clock says {_shown(now)}")
    slept = read.boot - read.monotonic
    if slept > 1.0:
        yield note(
            CLOCK,
            f"this machine has slept for {slept:.0f} s since it was booted: a job stands still "
            "meanwhile, and another host may take over its model_dir",
            "turn suspend off (systemctl mask sleep.target suspend.target)",
        )


def _shown(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S%z}"


def permissions(redact: Callable[[str], str], null: Path = _DEV_NULL) -> Iterator[Finding]:
    """Yields what is wrong with the files outside of model_dir that every job needs."""
    yield from _null(null)
    yield from _temporary()
    in_the_way = list(lock_in_the_way(redact))
    yield from (wrong(PERMISSIONS, each) for each in in_the_way)
    if not in_the_way and os.path.lexists(LOCK):
        yield ok(PERMISSIONS, f"{LOCK} is there, and can be locked")


def _null(null: Path) -> Iterator[Finding]:
    remedy = f"rm -f {null} && mknod -m 666 {null} c 1 3 (as root)"
    try:
        status = null.stat()
    except OSError as error:
        yield wrong(PERMISSIONS, f"{null}: {error.strerror}", remedy)
        return
    if not stat.S_ISCHR(status.st_mode) or status.st_rdev != _NULL:
        what = "is a regular file" if stat.S_ISREG(status.st_mode) else "is another device"
        text = f"{null} {what}, not the null device: what is thrown away there is kept"
        yield wrong(PERMISSIONS, text, remedy)
    elif not os.access(null, os.R_OK | os.W_OK, effective_ids=True):
        mode = stat.S_IMODE(status.st_mode)
        yield wrong(PERMISSIONS, f"{null} cannot be read and written (mode {mode:o})", remedy)
    else:
        yield ok(PERMISSIONS, f"{null} is the null device")


def _temporary() -> Iterator[Finding]:
    remedy = "make it writable (chmod 1777 /tmp), or name another folder by TMPDIR"
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile() as file:
            file.write(b"supervise doctor")
            file.flush()
    except OSError as error:
        yield wrong(PERMISSIONS, f"no temporary file can be written: {error}", remedy)
        return
    asked = os.environ.get("TMPDIR")
    if asked and Path(asked).absolute() != Path(folder).absolute():
        text = f"TMPDIR names {asked}, which cannot be used: temporary files go to {folder}"
        yield note(PERMISSIONS, text, remedy)
    else:
        yield ok(PERMISSIONS, f"{folder} can be written")
