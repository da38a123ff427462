"""Writes to standard output without ever making the job wait for the reader.

A write blocks on a paused terminal (Ctrl-S), a pipe that nobody reads or a disk that hangs, and
fails on a closed terminal. So a thread of its own writes. Its queue is bounded: what does not fit
is dropped, and so is what a full disk does not take. Once writing works again, a line tells how
many bytes were dropped.

An unbuffered program (`PYTHONUNBUFFERED`) writes each word of a line by itself. So a line of our
own waits a moment for the rest of a line that has begun.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from errno import EDQUOT, ENOSPC

from supervisor.host.notice import Notice, Tell

FLUSH_PATIENCE = 3.0
"""Seconds that the reader gets at the end to take what is left in the queue."""

_MAX_OUTPUT = 256 * 1024
"""Bytes in the queue above which a worker's output is dropped."""
_MAX_ALL = _MAX_OUTPUT + 64 * 1024
"""Bytes in the queue above which our own lines are dropped too. The difference is room that a flood
of output cannot take from them."""
_PATIENCE = 1.0
"""Seconds that a worker's output waits for a reader who falls behind."""
_REST_OF_LINE = 0.1
"""Seconds that a line of our own waits for the rest of a line of output."""
_MAY_PASS = (ENOSPC, EDQUOT)
"""Errors after which writing is tried again: a full disk may get room. After any other, such as
EPIPE, standard output is given up."""


@dataclass(frozen=True, slots=True)
class Part:
    """A line of our own (without its newline), or a chunk of a worker's output."""

    data: bytes
    is_ours: bool
    level: str = "info"
    """How serious a line of our own is."""
    unshown: int = 0
    """How many bytes this line of our own says were dropped."""

    @property
    def means(self) -> int:
        """How many bytes of output are lost if this part is not shown."""
        return self.unshown or len(self.data)


Show = Callable[[Sequence[Part]], Iterator[int]]
"""Writes parts, and yields after each write how many bytes were written. May block and raise. A
part that was being written when it raised is either finished together with the next parts, or
stays incomplete."""


def unshown(size: int) -> str:
    """Return the line that tells people that `size` bytes were dropped."""
    return f"[supervise: {size} bytes were not shown: standard output did not take them]"


class Outlet:
    """A bounded queue whose own thread shows every part, in order."""

    def __init__(
        self,
        show: Show,
        tell: Tell,
        *,
        period: float | None = None,
        end: Callable[[], None] = lambda: None,
        unshown: Callable[[int], str] = unshown,
    ) -> None:
        """Call `show` with each part as it comes; with a `period`, every so many seconds with all
        parts since then, which may be none. `end` is called after the last ones; `unshown` makes
        the line that tells how many bytes were dropped. `tell` is called once when `show` fails:
        after an error that may pass (`_MAY_PASS`) the next part is tried, else no more is shown."""
        self._show = show
        self._tell = tell
        self._period = period
        self._end = end
        self._unshown = unshown
        self._parts: deque[Part] = deque()
        self._size = 0
        """Bytes that are not shown yet."""
        self._dropped = 0
        """Bytes dropped because the queue was full."""
        self._failed = 0
        """Bytes taken from the queue whose write failed."""
        self._is_open = True
        self._is_broken = False
        self._is_within_line = False
        """Whether the last part taken from the queue is output that ends within a line."""
        self._held_until: float | None = None
        """Until when our line at the head of the queue waits; None: it does not yet."""
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outlet", daemon=True)
        self._thread.start()

    def line(self, data: bytes, level: str = "info") -> None:
        """Queue a line of our own. Never waits."""
        self._put(Part(data, is_ours=True, level=level), _MAX_ALL, 0.0)

    def output(self, data: bytes) -> bool:
        """Queue a worker's output; False: it is dropped. Without a `period`, a slow reader slows
        the worker down, and a reader who takes nothing delays it once, by a second."""
        return self._put(
            Part(data, is_ours=False), _MAX_OUTPUT, _PATIENCE if self._period is None else 0.0
        )

    def close(self, patience: float = FLUSH_PATIENCE) -> None:
        """Show what is left in the queue, waiting at most `patience` seconds."""
        with self._changed:
            self._tell_dropped()
        self._shut()
        self._closing.set()
        self._thread.join(patience)

    def _put(self, part: Part, limit: int, patience: float) -> bool:
        with self._changed:
            if not self._dropped:
                self._changed.wait_for(lambda: self._size < limit or not self._is_open, patience)
            if self._size >= limit:
                self._dropped += len(part.data)
                return False
            self._tell_dropped()
            self._add(part)
            return self._is_open

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._add(self._about(self._dropped))
            self._dropped = 0

    def _about(self, unshown: int) -> Part:
        return Part(self._unshown(unshown).encode(), is_ours=True, unshown=unshown)

    def _add(self, part: Part) -> None:
        if self._is_open:
            self._parts.append(part)
            self._size += len(part.data)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while (parts := self._next()) is not None:
                self._show_failed()
                self._show_some(parts)
            self._show_failed()
            self._end()
        except Exception as error:
            self._shut()
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._tell(
                Notice("stdout-lost", f"standard output is not used any more: {why}", reason=why)
            )

    def _show_failed(self) -> None:
        """Try to tell the reader how many bytes could not be written before."""
        if self._failed:
            note, self._failed = self._about(self._failed), 0
            self._done(-len(note.data))
            self._show_some([note])

    def _show_some(self, parts: Sequence[Part]) -> None:
        """Show `parts`.

        Raises:
            OSError: writing failed for good.
        """
        size = left = sum(len(part.data) for part in parts)
        try:
            for done in self._show(parts):
                left -= done
                self._done(done)
            self._is_broken = False
        except OSError as error:
            if error.errno not in _MAY_PASS:
                raise
            if not self._is_broken:
                self._tell(
                    Notice(
                        "stdout-unwritable",
                        f"standard output cannot be written: {error.strerror}",
                        reason=error.strerror,
                    )
                )
            self._is_broken = True
            nothing_shown = left == size
            self._failed += sum(part.means for part in parts) if nothing_shown else max(0, left)
        finally:
            self._done(left)

    def _next(self) -> Sequence[Part] | None:
        """Wait for the next parts to show; None: closed, and the queue is empty."""
        if self._period is not None:
            self._closing.wait(self._period)
        with self._changed:
            if self._period is None:
                self._changed.wait_for(lambda: self._parts or not self._is_open)
            if not self._parts and not self._is_open:
                return None
            if self._period is None:
                return [self._rest_of_line() or self._first()]
            return [self._parts.popleft() for _ in range(len(self._parts))]

    def _first(self) -> Part:
        part = self._parts.popleft()
        self._is_within_line = not part.is_ours and not part.data.endswith(b"\n")
        self._held_until = None
        return part

    def _rest_of_line(self) -> Part | None:
        """Take output from behind our line at the head of the queue, up to the end of the line in
        which it would be; None: there is none in time."""
        head = self._parts[0]
        if not self._is_within_line or not head.is_ours or head.unshown:
            return None
        now = time.monotonic()
        self._held_until = self._held_until or now + _REST_OF_LINE
        self._changed.wait_for(
            lambda: self._first_output() is not None or not self._is_open,
            max(0.0, self._held_until - now),
        )
        index = self._first_output()
        if index is None or time.monotonic() > self._held_until:
            return None
        part = self._parts[index]
        end = part.data.find(b"\n") + 1 or len(part.data)
        if end < len(part.data):
            self._parts[index] = replace(part, data=part.data[end:])
        else:
            del self._parts[index]
        self._is_within_line = not part.data[:end].endswith(b"\n")
        return replace(part, data=part.data[:end])

    def _first_output(self) -> int | None:
        """Return where the first output is in the queue."""
        return next((at for at, part in enumerate(self._parts) if not part.is_ours), None)

    def _done(self, size: int) -> None:
        with self._changed:
            self._size -= size
            self._changed.notify_all()

    def _shut(self) -> None:
        """Accept no more parts."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()


def write(descriptor: int, data: bytes) -> Iterator[int]:
    """Write all of `data`, however long it takes; yields the size of each write in bytes."""
    rest = memoryview(data)
    while rest:
        try:
            written = os.write(descriptor, rest[: select.PIPE_BUF])
        except BlockingIOError:  # a process that shares the descriptor made it non-blocking
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
            continue
        yield written
        rest = rest[written:]


def say_on_stderr(text: str) -> None:
    """Write `text` and a newline to standard error; give up after `FLUSH_PATIENCE` seconds."""
    data = text.encode("utf-8", "replace") + b"\n"

    def show(parts: Sequence[Part]) -> Iterator[int]:
        for part in parts:
            yield from write(2, part.data)

    try:
        outlet = Outlet(show, lambda why: None)
    except RuntimeError:  # no thread can be started (pids.max, RLIMIT_NPROC)
        _write_what_fits(2, data)
        return
    outlet.line(data)
    outlet.close()


def _write_what_fits(descriptor: int, data: bytes) -> None:
    """Write as much as fits without blocking."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    with suppress(OSError):
        while data and poll.poll(0):
            data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]
