"""Announces the end of a batch system's allocation, which is known from its beginning.

A batch system kills a job when its time is over. The announcement comes at the last moment at which
a save still fits, because until then the job trains and restarts as anywhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from supervisor.host.notice import Notice, Tell
from supervisor.ports import Announcement

_SLURM_END = "SLURM_JOB_END_TIME"
_SLURM_JOB = "SLURM_JOB_ID"
_PAUSE = 1.0
"""Seconds between two looks at the clock."""
_NO_LIMIT = 10**11
"""Larger numbers are no Unix time in seconds: the allocation has no end."""


class AllocationEnd:
    """A time at which this machine will be taken away from the job."""

    pause = _PAUSE
    quick = True

    def __init__(
        self,
        end: float,
        what: str,
        time_needed: Callable[[], float],
        unix_time: Callable[[], float] = time.time,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """`end` is a Unix time, `what` says what ends then. `time_needed` returns how many seconds
        before the end the job must begin to save. `clock` is a clock that nobody sets."""
        self._end = end
        self._what = what
        self._time_needed = time_needed
        self._unix_time = unix_time
        self._clock = clock
        self._end_on_clock = clock() + end - unix_time()

    def __str__(self) -> str:
        return f"the end of {self._what}"

    def look(self) -> Announcement | None:
        """See `AnnouncementSource`. If somebody has set the clock since the start, the end is
        uncertain: then the earlier of the two possible times counts, because a drain costs less
        than a lost save."""
        left = min(self._end - self._unix_time(), self._end_on_clock - self._clock())
        if left > self._time_needed():
            return None
        return Announcement(f"{self._what} ends at {shown_time(self._end)}", notice=max(0.0, left))


def shown_time(unix_time: float) -> str:
    """Returns a Unix time as people read it."""
    return datetime.fromtimestamp(unix_time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def slurm_end(environ: Mapping[str, str], now: float, tell: Tell) -> tuple[float, str] | None:
    """Returns the end of the Slurm allocation that `environ` names, and the name of the allocation.

    None: there is no such allocation or no such end. `tell` gets a notice about an end that is no
    time or has passed: an allocation whose end has passed cannot run this process.
    """
    text = environ.get(_SLURM_END, "").strip()
    if not text or text == "0":
        return None
    if not text.isascii() or not text.isdecimal():
        why = f"{_SLURM_END} is {text!r}, which is no Unix time"
    elif int(text) >= _NO_LIMIT:
        return None
    elif int(text) <= now:
        why = f"{_SLURM_END} names a time that has passed ({shown_time(int(text))})"
    else:
        job = environ.get(_SLURM_JOB)
        return float(text), f"the allocation of Slurm job {job}" if job else "the Slurm allocation"
    remedy = "give the end by autorestart.preemption.until, or unset the variable"
    told = f"the end of the Slurm allocation is not known: {why}; {remedy}"
    tell(Notice("allocation-end-unusable", told, reason=why))
    return None
