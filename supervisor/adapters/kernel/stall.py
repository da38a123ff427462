"""Ends a supervisor that was asked to stop while its main loop hangs.

The main loop writes the journal and run.log. A file system that hangs (a dead NFS server) holds it
in the middle of a system call, where Python handles no signal. So a separate thread watches the
main loop. If the loop stands still and SIGTERM has arrived, the thread passes SIGTERM on to the
workers, which may save elsewhere. Soon after the grace period it ends this process. Then the guard
kills what is left, as after any death of a supervisor.

While nobody asks the supervisor to stop, the thread leaves a hanging loop alone: the file system
may come back.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.ports import MainLoopView

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}
_PATIENCE = 3
"""Ticks for which the loop stands still before the thread acts."""


@contextmanager
def watched(
    loop: MainLoopView,
    grace: float,
    terminate: Callable[[], None],
    end: Callable[[str], None],
    tick: float = 1.0,
) -> Iterator[None]:
    """Watch the main loop every `tick` seconds while the block runs. Enter it in the main thread.

    `terminate` passes the request to stop on to the workers, if the loop has not taken it. `end`
    is called with the reason if the loop still hangs `grace` seconds after the request; it ends
    this process. Both are called in another thread.
    """
    heard, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    stall = _Stall(loop, grace, terminate, end, tick)
    main = threading.get_ident()
    thread = threading.Thread(target=stall.watch, args=(heard, main), name="stall", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)  # which ends the thread
        thread.join()
        os.close(heard)


class _Stall:
    def __init__(
        self,
        loop: MainLoopView,
        grace: float,
        terminate: Callable[[], None],
        end: Callable[[str], None],
        tick: float,
    ) -> None:
        self._loop = loop
        self._grace = grace
        self._terminate = terminate
        self._end = end
        self._pause = tick
        self._still_ticks = 0
        """Ticks since `busy_since` of the loop last changed."""
        self._late_ticks = 0
        """How many of them came after the request to stop."""
        self._since: float | None = None
        self._busy_since_at_signal: float | None = None
        """`busy_since` of the loop when the last signal arrived."""

    def watch(self, heard: int, main: int) -> None:
        """Watch until the other end of `heard` is closed; `main` is the main thread's id."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # so that `sigpending` shows them
        while True:
            ready, _, _ = select.select([heard], [], [], self._pause)
            if not ready:
                self._tick(main)
                continue
            numbers = os.read(heard, 64)
            if not numbers:
                return
            if not _SIGNALS.isdisjoint(numbers):
                self._busy_since_at_signal = self._loop.busy_since

    def _tick(self, main: int) -> None:
        # Ticks are counted, not seconds: if the whole process was frozen, the loop did not hang.
        since = self._loop.busy_since
        if since is None or since != self._since:
            self._since, self._still_ticks, self._late_ticks = since, 0, 0
            return
        self._still_ticks += 1
        is_signal_untaken = self._busy_since_at_signal == since or bool(
            signal.sigpending() & _SIGNALS
        )
        if self._still_ticks < _PATIENCE or not (is_signal_untaken or self._loop.is_stop_requested):
            return
        self._late_ticks += 1
        if self._late_ticks == 1 and is_signal_untaken:
            self._terminate()
        if (late := self._late_ticks * self._pause) > self._grace:
            self._end(f"the main loop hangs {_place(main)}, and was told to stop {late:g} s ago")


def _place(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "while the main thread ends"
    return f"in {frame.f_code.co_name} ({Path(frame.f_code.co_filename).name})"
