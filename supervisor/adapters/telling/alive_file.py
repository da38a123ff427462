"""Touches a file while the main loop turns (`supervise run --alive-file`), for health checks.

A check that finds the file older than a minute knows that the supervisor hangs. It starts no Python
and reads no journal, and it is right for a job that waits or backs off. systemd needs no file: see
`systemd.SystemdWatchdog`.
"""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.host.aside import aside
from supervisor.host.notice import Tell
from supervisor.host.unwritable import UnwritableOnce
from supervisor.ports import CallLater

PERIOD = 5.0
"""Seconds between two touches of the file."""


class AliveFile:
    """Touches the file in each period, from a timer of the main loop. It is not an observer: a
    failed observer is switched off, and here an error may pass."""

    def __init__(self, path: Path, call_later: CallLater, on_error: Tell) -> None:
        self._path = path
        self._call_later = call_later
        what = "cannot be touched: {}; health checks that read it fail, and the job goes on"
        self._touched = UnwritableOnce(str(path), what, on_error)
        self._tick()

    def _tick(self) -> None:
        self._touched.attempt(lambda: aside(str(self._path)).ask(self._touch))
        self._call_later(PERIOD, self._tick)

    def _touch(self) -> None:
        """Set the file's time to now; make the file if there is none. No link is followed: /tmp is
        writable for everybody."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        number = os.open(self._path, flags, 0o644)
        try:
            os.utime(number)
        finally:
            os.close(number)
