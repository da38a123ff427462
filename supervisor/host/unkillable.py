"""How long to wait for processes that do not die of SIGKILL, and what a person is told of them.

Some cannot be killed: one that has another user's id, where we are not root; one that is in a
frozen cgroup, or waits in the kernel for a disk. Only time tells that from one that takes long.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from supervisor.host.notice import Notice, Tell

TELL_AFTER = 5.0
"""Seconds after which they are named."""
GIVE_UP_AFTER = 60.0
"""Seconds: a process with hundreds of gigabytes, or a device to close, takes some to end."""
_LONGEST_STEP = 1.0
"""Seconds counted between two looks at the most: whoever froze us may have frozen them too."""
_STILL = 3.0
"""Seconds without CPU time, asleep or waiting: it does not die, it is not on its way."""
_BRISK = 1.0
_PAUSE = 0.25


class UnkillableError(Exception):
    """Processes of the job cannot be killed: nothing may be started beside them."""


class Patience:
    """Counts the time for which something is left although it was killed."""

    def __init__(self, tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        """`tell` a person who is left."""
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
        """Up to which part of `_waited` something moved."""

    @property
    def is_over(self) -> bool:
        """Whether what is left was given up."""
        is_still = self._asked and self._waited - self._still_since >= _STILL
        return self._waited >= (TELL_AFTER if is_still else self._limit)

    def asked(self) -> None:
        """Somebody waits since before the kill: give up what does not move as soon as it would be
        named. What still frees its memory, which may take long, gets its time."""
        self._asked = True

    def hurry(self) -> None:
        """Somebody waits for the end: give up what is left as soon as it would be named."""
        self._limit = TELL_AFTER

    @property
    def pause(self) -> float:
        """Seconds to wait until they are killed again: none at first."""
        return 0.0 if self._waited < _BRISK else _PAUSE

    def look(self, is_left: bool, who: Callable[[], Iterable[int]]) -> None:
        """Whether something is left at this time; `who` gives their pids.

        Raises:
            UnkillableError: something was left for too long.
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
    """The CPU time of each process; None where one of them runs, or waits for its turn to."""
    fields = {pid: text for pid in pids if (text := _stat(pid))}
    if any(text[0] == "R" for text in fields.values()):
        return None
    return {pid: (text[11], text[12]) for pid, text in fields.items()}


def _stat(pid: int) -> list[str]:
    """What /proc/PID/stat says after the name; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def described(pids: Iterable[int]) -> str:
    """Processes as a person knows them: `pid 12 (sudo, of root)`."""
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
