"""Shows people what happens, and never makes the job wait for them.

A terminal that is paused (Ctrl-S), a pipe that nobody reads or a disk that hangs blocks whoever
writes to it; a terminal that is closed fails. So a thread of its own writes. What waits to be
written is bounded: what does not fit is dropped, and so is what a full disk does not take. Once
something can be shown again, the reader is told how much that was.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC

from supervisor.host.notice import Notice, Tell

FLUSH_PATIENCE = 3.0
"""Seconds that a reader gets for what is left at the end."""

_MAX_OUTPUT = 256 * 1024
"""Bytes that may wait until no more of a worker's output is taken."""
_MAX_ALL = _MAX_OUTPUT + 64 * 1024
"""Bytes that may wait until our own lines are dropped too: a flood of output hides none of them."""
_PATIENCE = 1.0
"""Seconds that a worker's output waits for a reader who falls behind."""
_MAY_PASS = (ENOSPC, EDQUOT)
"""A disk that is full may have room again. A reader that is gone does not come back."""


@dataclass(frozen=True, slots=True)
class Part:
    """A line of our own (without its end), or a chunk of a worker's output."""

    data: bytes
    is_ours: bool
    level: str = "info"
    """How serious a line of our own is."""
    unshown: int = 0
    """How many bytes this line of our own says were dropped."""

    @property
    def means(self) -> int:
        """How many bytes are not shown if this is not."""
        return self.unshown or len(self.data)


Show = Callable[[Sequence[Part]], Iterator[int]]
"""Shows parts, and yields how many bytes are done, as they are. May block and raise. What is begun
and raises is either finished with the next parts, and done, or shown in part only."""


def unshown(size: int) -> str:
    """That so much was dropped, for people."""
    return f"[supervise: {size} bytes were not shown: standard output did not take them]"


class Outlet:
    """Has everything that is handed to it shown, in order, by a thread of its own."""

    def __init__(
        self,
        show: Show,
        tell: Tell,
        *,
        period: float | None = None,
        end: Callable[[], None] = lambda: None,
        unshown: Callable[[int], str] = unshown,
    ) -> None:
        """`show` gets each part as it comes; with a `period` all of them, perhaps none, each so
        many seconds. `end` is called after the last ones, `unshown` for the line that says how
        many bytes were dropped. `tell` is told once why nothing can be
        shown: what may pass is tried again with the next part, and else nothing more is shown."""
        self._show = show
        self._tell = tell
        self._period = period
        self._end = end
        self._unshown = unshown
        self._parts: deque[Part] = deque()
        self._size = 0
        """Bytes that are not shown yet."""
        self._dropped = 0
        """Bytes that found no room to wait."""
        self._failed = 0
        """Bytes that waited and could not be shown."""
        self._is_open = True
        self._is_broken = False
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outlet", daemon=True)
        self._thread.start()

    def line(self, data: bytes, level: str = "info") -> None:
        """Show a line of our own. Never waits."""
        self._put(Part(data, is_ours=True, level=level), _MAX_ALL, 0.0)

    def output(self, data: bytes) -> bool:
        """Show a worker's output; False: it is dropped. Where each part is shown as it comes, a
        reader who falls behind slows the worker down; one who does not read stops it once, for a
        second."""
        return self._put(
            Part(data, is_ours=False), _MAX_OUTPUT, _PATIENCE if self._period is None else 0.0
        )

    def close(self, patience: float = FLUSH_PATIENCE) -> None:
        """Show what is left, and wait at most `patience` seconds for it."""
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
        """Tell how much could not be shown before, if that can be told now."""
        if self._failed:
            note, self._failed = self._about(self._failed), 0
            self._done(-len(note.data))
            self._show_some([note])

    def _show_some(self, parts: Sequence[Part]) -> None:
        """Show `parts`.

        Raises:
            OSError: that cannot be done any more.
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
        """What is to be shown next; None: nothing ever."""
        if self._period is not None:
            self._closing.wait(self._period)
        with self._changed:
            if self._period is None:
                self._changed.wait_for(lambda: self._parts or not self._is_open)
            if not self._parts and not self._is_open:
                return None
            number = 1 if self._period is None else len(self._parts)
            return [self._parts.popleft() for _ in range(number)]

    def _done(self, size: int) -> None:
        with self._changed:
            self._size -= size
            self._changed.notify_all()

    def _shut(self) -> None:
        """Take nothing more."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()


def write(descriptor: int, data: bytes) -> Iterator[int]:
    """Write `data`, however long that takes; yields how many bytes were written, as they are."""
    rest = memoryview(data)
    while rest:
        try:
            written = os.write(descriptor, rest[: select.PIPE_BUF])
        except BlockingIOError:  # whoever shares it with us has made it so
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
            continue
        yield written
        rest = rest[written:]


def say_on_stderr(text: str) -> None:
    """Write `text` and a newline to standard error, unless nobody takes it within some seconds."""
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
    """Write as much as is taken without waiting."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    with suppress(OSError):
        while data and poll.poll(0):
            data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]
