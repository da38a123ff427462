"""Our end of the guard process (`supervisor/host/guard.py`): starts it, tells it, replaces it."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading

from supervisor.host import guard

_COMMAND = (sys.executable, "-I", "-S", guard.__file__)
_ENVIRONMENT = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
_LAST_LOOK = 5.0


class Guard:
    """A process that kills everything marked with `mark` as soon as we are dead.

    It is spawned from a bare interpreter, not forked: it shares no page that we would write to, no
    descriptor and no environment with us. Every signal is blocked in it from its birth, and its
    process group is its own, so nothing that is meant for us ends it. It stays in our session,
    by which `kill_descendants` knows that it is not of the job.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        read_end, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self.pid = os.posix_spawn(
            sys.executable,
            _COMMAND,
            _ENVIRONMENT,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, read_end, 0),
                (os.POSIX_SPAWN_DUP2, null, 1),
                (os.POSIX_SPAWN_DUP2, null, 2),
            ],
            setpgroup=0,
            setsigmask=signal.valid_signals(),
        )
        os.close(read_end)
        os.close(null)
        self.pidfd = os.pidfd_open(self.pid)
        self._say(f"mark {self._mark}")

    def replace(self) -> None:
        """Start another one: this one has ended."""
        with self._lock:
            self._finish()
            self._start()

    def kill_unless_renewed(self, seconds: float) -> None:
        """Kill what is marked unless this is called again within `seconds`. In any thread."""
        with self._lock:
            self._say(f"within {seconds}")

    def kill_now(self) -> None:
        """Kill what is marked. In any thread."""
        with self._lock:
            self._say("kill")

    def dismiss(self) -> None:
        """Let it look a last time and end."""
        with self._lock:
            self._finish()

    def _say(self, line: str) -> None:
        try:
            os.write(self._pipe, line.encode() + b"\n")
        except (
            BrokenPipeError,
            BlockingIOError,
        ):  # it is dead or stopped, and about to be replaced
            return

    def _finish(self) -> None:
        """Wait for its end, but not for ever: it stays behind for a process that does not die."""
        os.close(self._pipe)
        if select.select([self.pidfd], [], [], _LAST_LOOK)[0]:
            os.waitpid(self.pid, 0)
        os.close(self.pidfd)
