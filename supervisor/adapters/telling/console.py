"""Writes log lines and rank 0's output to standard output that is no terminal, as text or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from supervisor.host.notice import Tell
from supervisor.host.outlet import FLUSH_PATIENCE, Outlet, Part, unshown, write
from supervisor.narrative.event_line import MAIN, Level, attempt_source
from supervisor.narrative.recent_output import RecentOutput
from supervisor.ports import Clock

_MAX_LINE = 64 * 1024
"""Most bytes of a line of output in one event. A longer line becomes several events."""


class PlainConsole:
    """Writes to a descriptor. A slow reader never makes the main loop wait."""

    def __init__(
        self,
        descriptor: int,
        tell: Tell,
        unshown: Callable[[int], str] = unshown,
    ) -> None:
        """`tell` is called once if the descriptor cannot be written. `unshown` returns the line
        that tells how many bytes were dropped."""
        self._descriptor = descriptor
        self._is_at_line_start = True
        self._begun = b""
        """The rest of a line, of which a full disk has taken only the beginning."""
        self._outlet = Outlet(self._show, tell, unshown=unshown)
        self._recent = RecentOutput()

    def line(self, text: str, level: Level = "info") -> None:
        """Write one line of the event log. It begins on a new line."""
        self._outlet.line(text.encode("utf-8", "replace"))

    def mirror(self, attempt: int, chunk: bytes) -> None:
        """Pass on a part of a worker's output, unchanged; an empty `chunk` is its end."""
        if chunk and self._outlet.output(chunk):
            self._recent.shown(chunk)

    def has_shown(self, lines: Sequence[str]) -> bool:
        """True if the worker's recent output contains all of `lines`."""
        return self._recent.has(lines)

    def close(self, patience: float = FLUSH_PATIENCE) -> None:
        """Write what is left; wait at most `patience` seconds."""
        self._outlet.close(patience)

    def _show(self, parts: Sequence[Part]) -> Iterator[int]:
        for part in parts:
            for size in write(self._descriptor, self._begun):
                self._begun = self._begun[size:]
                self._is_at_line_start = not self._begun
            start = b"\n" if part.is_ours and not self._is_at_line_start else b""
            end = b"\n" if part.is_ours else b""
            yield from self._write(start + part.data + end)

    def _write(self, data: bytes) -> Iterator[int]:
        """Write `data`; yields the size of each write. If writing fails within a line, the rest of
        the line is kept, to be written before the next part."""
        written = 0
        try:
            for size in write(self._descriptor, data):
                written += size
                self._is_at_line_start = data[written - 1 : written] == b"\n"
                yield size
        except OSError:
            if written and not self._is_at_line_start:
                self._begun = data[written : data.find(b"\n", written) + 1]
                yield len(self._begun)
            raise


class JsonConsole(PlainConsole):
    """Writes nothing but JSON: each line of a worker's output becomes an event too."""

    def __init__(
        self,
        descriptor: int,
        tell: Tell,
        clock: Clock,
        as_json: Callable[[dict[str, object]], str],
    ) -> None:
        """`as_json` renders an event, given as its keys and values."""
        super().__init__(descriptor, tell, self._unshown)
        self._clock = clock
        self._as_json = as_json
        self._attempt = 0
        self._unfinished = b""
        """The output of the attempt after the last whole line."""

    def mirror(self, attempt: int, chunk: bytes) -> None:
        """Pass on the lines of a worker's output as events; an empty `chunk` is its end."""
        if not chunk:
            if attempt == self._attempt:
                self._finish()
            return
        if attempt != self._attempt:
            self._finish()
            self._attempt = attempt
        *lines, rest = (self._unfinished + chunk).split(b"\n")
        self._unfinished = rest[len(rest) - len(rest) % _MAX_LINE :]
        whole = len(rest) - len(self._unfinished)
        lines += [rest[start : start + _MAX_LINE] for start in range(0, whole, _MAX_LINE)]
        if lines:
            self._outlet.output(b"".join(map(self._wrapped, lines)))

    def close(self, patience: float = FLUSH_PATIENCE) -> None:
        """See `PlainConsole`."""
        self._finish()
        super().close(patience)

    def _finish(self) -> None:
        if self._unfinished:
            self._outlet.output(self._wrapped(self._unfinished))
            self._unfinished = b""

    def _wrapped(self, line: bytes) -> bytes:
        text, source = line.decode("utf-8", "backslashreplace"), attempt_source(self._attempt)
        event = self._event(
            "output",
            source,
            text.removesuffix("\r"),
            attempt=self._attempt,
            rank=0,
            stream="output",
        )
        return event.encode() + b"\n"

    def _unshown(self, size: int) -> str:
        return self._event("output-unshown", MAIN, unshown(size), level="warning", bytes=size)

    def _event(
        self, event: str, source: str, text: str, level: Level = "info", **keys: object
    ) -> str:
        time = self._clock.wall().isoformat(sep=" ", timespec="milliseconds")
        first = {"time": time, "level": level, "source": source, "event": event, "text": text}
        return self._as_json({**first, **keys})
