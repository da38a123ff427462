"""How long to wait for processes that do not die of SIGKILL, and what a person is told of them.

Some cannot be killed: a process of another user, where we are not root; one in a frozen cgroup; one
that waits in the kernel for a disk. Only time tells them from a process that ends slowly.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from supervisor.host.notice import Notice, Tell

TELL_AFTER = 5.0
"""Seconds after which a person is told the names of the processes that are left."""
GIVE_UP_AFTER = 60.0
"""Seconds after which we give up. A process with hundreds of gigabytes, or with a device to close,
takes several seconds to end."""
_LONGEST_STEP = 1.0
"""Most seconds counted between two checks: whoever froze us may have frozen the processes too."""
_STILL = 3.0
"""Seconds without CPU time after which a process counts as stuck, and not as ending slowly."""
_BRISK = 1.0
_PAUSE = 0.25


class UnkillableError(Exception):
    """Processes of the job cannot be killed: nothing may be started beside them."""


class Patience:
    """Counts for how long processes have been left after SIGKILL."""

    def __init__(self, tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        """`tell` is called with the names of the processes that are left."""
        self._tell = tell
        self._clock = clock
        self._waited = 0.0
        self._looked: float | None = None
        self._told = False
        self._limit = GIVE_UP_AFTER
        self._asked = False
        """Whether the job was asked to stop before anything was killed."""
        self._seen: object = None
        self._still_since = 0.0
        """Value of `_waited` when a process last used CPU time."""

    @property
    def is_over(self) -> bool:
        """Whether we have given up on the processes that are left."""
        is_still = self._asked and self._waited - self._still_since >= _STILL
        return self._waited >= (TELL_AFTER if is_still else self._limit)

    def give_up_early_on_idle(self) -> None:
        """The stop was asked for before the kill: give up after `TELL_AFTER` seconds on processes
        that use no CPU time. One that still frees its memory gets `GIVE_UP_AFTER` seconds."""
        self._asked = True

    def give_up_early(self) -> None:
        """A person is waiting for the end: give up after `TELL_AFTER` seconds in any case."""
        self._limit = TELL_AFTER

    @property
    def pause(self) -> float:
        """Seconds to wait before the next SIGKILL; 0 at first."""
        return 0.0 if self._waited < _BRISK else _PAUSE

    def look(self, is_left: bool, who: Callable[[], Iterable[int]]) -> None:
        """Register whether processes are left now; `who` returns their pids.

        Raises:
            UnkillableError: processes were left for too long.
        """
        if not is_left:
            self._waited, self._looked, self._told = 0.0, None, False
            self._limit, self._asked = GIVE_UP_AFTER, False
            self._seen, self._still_since = None, 0.0
            return
        now = self._clock()
        if self._looked is not None:
            self._waited += min(now - self._looked, _LONGEST_STEP)
        self._looked = now
        if self._asked and self._waited >= _BRISK:
            self._watch(who())
        if self.is_over:
            raise UnkillableError(f"{described(who())} cannot be killed: end it first")
        if self._waited >= TELL_AFTER and not self._told:
            self._told = True
            left = GIVE_UP_AFTER - TELL_AFTER
            text = (
                f"{described(who())} does not end although it is killed; unless it is gone in "
                f"{left:.0f} s, this run ends"
            )
            self._tell(Notice("process-unkillable", text, pids=list(who()), seconds=left))

    def _watch(self, pids: Iterable[int]) -> None:
        seen = _standing_still(pids)
        if seen is None or seen != self._seen:
            self._still_since = self._waited
        self._seen = seen


def _standing_still(pids: Iterable[int]) -> object:
    """Return the CPU time of each process, to compare; None: one of them is running or runnable."""
    fields = {pid: text for pid in pids if (text := _stat(pid))}
    if any(text[0] == "R" for text in fields.values()):
        return None
    return {pid: (text[11], text[12]) for pid, text in fields.items()}


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def described(pids: Iterable[int]) -> str:
    """Describe processes for people: `pid 12 (sudo, of root)`."""
    found = [text for text in map(_described, sorted(pids)) if text]
    return f"pid {', '.join(found)}" if found else "what the job started"


def _described(pid: int) -> str:
    place = Path(f"/proc/{pid}")
    try:
        name = (place / "comm").read_text(errors="replace").strip()
        user = place.stat().st_uid
    except OSError:  # it is gone
        return ""
    shown = "".join(char if char.isprintable() else "?" for char in name)
    state = ", frozen or waiting in the kernel" if user == os.geteuid() else ""
    return f"{pid} ({shown}, of {_user(user)}{state})"


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
