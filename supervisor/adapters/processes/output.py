"""Reads a worker's output: writes it to files, searches it, and mirrors it to our standard output.

Each worker's output has a thread of its own, so that a busy supervisor never blocks a trainer that
prints. Output is mirrored byte for byte: whoever reads a container's log gets the trainer's bytes.
(In a terminal an escape sequence could do harm: there the live view shows only text.)

The files of an attempt's output are bounded, because a trainer that prints a warning a thousand
times a second must not fill the disk that its checkpoints need. `rank0.log` is always the newest
part. When it is full, it is renamed: the first time to `rank0.first.log`, from then on to
`rank0.previous.log`. So the beginning and the end are both kept, and a line at the head of the
newest part says how much was dropped between them.
"""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from supervisor.config.patterns import Pattern, SlowPatternError
from supervisor.core.search_time import SearchTime
from supervisor.diagnosis.digest import LogDigest
from supervisor.diagnosis.step_lines import loss_in
from supervisor.files import writing
from supervisor.host.notice import Notice, Tell
from supervisor.protocol.reading import open_file

MAX_OUTPUT = 64 << 20
"""Bytes kept of one worker's output in one attempt: enough for an hour of many messages, and little
beside a single checkpoint of a usual model."""

_PARTS = 3
_CHUNK = 64 * 1024
_JAX_SIGTERM_TEXT = b"] SIGTERM caught at "
_SIGTERM = re.compile(rb"\bpreemption_notifier\.cc:\d+" + re.escape(_JAX_SIGTERM_TEXT))
_MAX_JAX_SIGTERM_LINE = 60
"""Most bytes of that message. Two reads may each hold a part of it."""
_MAX_LINE = 64 * 1024
_ROOM_FOR_A_LINE = 4 * 1024
"""Bytes at the end of a part that are kept free for the rest of a line, so that a part ends with a
whole line. Only a line that needs more is cut."""
_SEARCHED = 2 * 1024
"""Bytes at the beginning and at the end of a line that patterns are searched in."""
_MAX_SLOW = 3
"""How many lines may exceed the time limit of a search before the pattern is switched off."""


class LineListener(Protocol):
    """Reads the lines of a worker's output, without changing them."""

    def hear(self, lines: Sequence[bytes], at: float) -> None:
        """Take the whole lines of one read, at the time `at`."""
        ...

    def end(self, at: float) -> None:
        """The output has ended."""
        ...


@dataclass(frozen=True, slots=True)
class OutputPatterns:
    """What to search each line of the output for, and whom to tell."""

    step: Pattern | None = None
    on_step: Callable[[int, int, float | None], None] = field(
        default=lambda first, last, loss: None
    )
    """Called once a read, with the first and the last step that it found, and the loss in the line
    of the last one (None: there is none)."""
    success: Pattern | None = None
    on_sigterm: Callable[[], None] = field(default=lambda: None)
    """Called when jax, which handles SIGTERM itself, prints that it got one."""
    listener: LineListener | None = None
    """Gets all lines."""


class OutputSink(Protocol):
    """Keeps a worker's output. Its methods never fail."""

    def write(self, chunk: bytes) -> None:
        """Add `chunk`."""
        ...

    def evidence(self) -> str:
        """Returns the parts of the output that may tell why the worker ended."""
        ...

    def close(self) -> None:
        """Close it: no more output comes."""
        ...


class OutputReader:
    """Takes one worker's output, chunk by chunk: records it, mirrors it, searches it."""

    def __init__(
        self,
        sink: OutputSink,
        patterns: OutputPatterns,
        mirror: Callable[[bytes], None] | None,
        on_error: Tell,
        now: Callable[[], float],
    ) -> None:
        """Write to `sink` and, if given, to `mirror`, which gets an empty chunk at the end.

        `now` returns the time in seconds, which bounds the searches.
        """
        self.success_seen = False
        """True once the success pattern was found."""
        self.received = 0
        """How many bytes it was given."""
        self.lines = 0
        """How many lines were searched for a step; 0 if there is no pattern for steps."""
        self.last_line = ""
        """The last of these lines that is not empty; only the end of a very long one."""
        self.step_seen = False
        """True once one of these lines held a step."""
        self._last_step: int | None = None
        self._largest_gap = 0
        """The largest difference between two steps in a row."""
        self._patterns = patterns
        self._mirror = mirror
        self._step_search = _Search(patterns.step, on_error, now)
        self._success_search = _Search(patterns.success, on_error, now)
        self._listener = patterns.listener
        self._now = now
        self._reads_lines = (
            patterns.step is not None
            or patterns.success is not None
            or patterns.listener is not None
        )
        self._sink = sink
        self._line = b""
        self._recent = b""

    @property
    def tells_every_step(self) -> bool:
        """True if the output held several steps, none of which was left out."""
        return self._largest_gap == 1

    def evidence(self) -> str:
        """Returns the parts of the output that may tell why the worker ended, even if the disk is
        full."""
        return self._sink.evidence()

    def begin(self) -> None:
        """Make the file: run.log names it from the start, and a program may be silent for long."""
        self._sink.write(b"")

    def take(self, chunk: bytes) -> None:
        """Take the next bytes of the output."""
        self.received += len(chunk)
        self._sink.write(chunk)
        if self._mirror is not None:
            self._mirror(chunk)
        self._recent = self._recent[-_MAX_JAX_SIGTERM_LINE:] + chunk
        if _JAX_SIGTERM_TEXT in self._recent and _SIGTERM.search(self._recent):
            self._patterns.on_sigterm()
        if self._reads_lines:
            self._take_lines(chunk)

    def end(self) -> None:
        """End the output. A last line without a newline is searched too."""
        if self._reads_lines and self._line:
            self._take_lines(b"\n")
        if self._listener is not None:
            self._listener.end(self._now())
        if self._mirror is not None:
            self._mirror(b"")
        self._sink.close()

    def _take_lines(self, chunk: bytes) -> None:
        # A progress bar ends each of its pictures with a carriage return.
        *lines, self._line = (self._line + chunk).replace(b"\r", b"\n").split(b"\n")
        self._line = self._line[-_MAX_LINE:]
        if self._listener is not None:
            self._listener.hear(lines, self._now())
        if self._patterns.step is not None or self._patterns.success is not None:
            self._search_lines(lines)

    def _search_lines(self, lines: Sequence[bytes]) -> None:
        steps: list[int] = []
        last, unmatched = "", None
        for raw in lines:
            if raw == unmatched and not raw.strip():  # there may be millions of empty lines
                continue
            if len(raw) > 2 * _SEARCHED:
                raw = raw[:_SEARCHED] + b"\n" + raw[-_SEARCHED:]
            text = raw.decode("utf-8", "replace")
            match, unmatched = self._step_search(text), raw
            if match is not None:
                unmatched = None
                step = _parse_step(match[1])
                if step is not None:
                    self._note_gap(step)
                    steps.append(step)
                    last = text
            if self._success_search(text) is not None:
                self.success_seen, unmatched = True, None
        if self._patterns.step is not None:
            self.lines += len(lines)
            shown = next((line for raw in reversed(lines) if (line := raw.strip())), b"")
            if shown:
                self.last_line = shown.decode("utf-8", "replace")
        if steps:
            self.step_seen = True
            self._patterns.on_step(steps[0], steps[-1], loss_in(last))

    def _note_gap(self, step: int) -> None:
        if self._last_step is not None:
            self._largest_gap = max(self._largest_gap, abs(step - self._last_step))
        self._last_step = step


class OutputPump:
    """Reads one worker's stdout and stderr, from one pipe, until no process has the pipe open."""

    def __init__(
        self,
        path: Path,
        patterns: OutputPatterns,
        mirror: Callable[[bytes], None] | None,
        on_error: Tell,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to `path` and, if given, to `mirror`. The worker gets `write_end` of the pipe."""
        sink = OutputFile(path, on_error)
        self.reader = OutputReader(sink, patterns, mirror, on_error, now)
        self._read_end, self.write_end = os.pipe()
        self._thread = threading.Thread(target=self._pump, name="output", daemon=True)

    def start(self) -> None:
        """Close our copy of the write end and begin to read."""
        os.close(self.write_end)
        self._thread.start()

    def abandon(self) -> None:
        """Close both ends of the pipe, because the worker was not started."""
        os.close(self.write_end)
        os.close(self._read_end)

    def finish(self, timeout: float) -> bool:
        """Wait for the end of the output; False: after `timeout` seconds the pipe is still open."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _pump(self) -> None:
        self.reader.begin()
        while chunk := os.read(self._read_end, _CHUNK):
            self.reader.take(chunk)
        self.reader.end()
        os.close(self._read_end)


class _Search:
    """Searches lines for one pattern, in bounded time: lines that take too long are skipped."""

    def __init__(self, pattern: Pattern | None, tell: Tell, now: Callable[[], float]) -> None:
        self._pattern = pattern
        self._tell = tell
        self._now = now
        self._slow = 0
        self._time = SearchTime()
        self._is_told = False

    def __call__(self, line: str) -> re.Match[str] | None:
        if self._pattern is None:
            return None
        if not self._time.allows(self._now()):
            self._tell_once(self._pattern.source)
            return None
        began = time.thread_time()
        try:
            return self._search(self._pattern, line)
        finally:
            self._time.took(time.thread_time() - began, len(line))

    def _tell_once(self, source: str) -> None:
        if not self._is_told:
            self._is_told = True
            text = (
                f"the pattern '{source}' is slow: lines are skipped, so that the search takes at "
                "most a tenth of the time; make the pattern simpler"
            )
            self._tell(Notice("pattern-slow", text, detail=source))

    def _search(self, pattern: Pattern, line: str) -> re.Match[str] | None:
        try:
            return pattern.search(line)
        except SlowPatternError as error:
            self._slow += 1
            if self._slow == 1:
                self._tell(
                    Notice(
                        "pattern-slow",
                        f"{error}: this line is skipped; make the pattern simpler",
                        detail=pattern.source,
                    )
                )
            elif self._slow == _MAX_SLOW:
                self._pattern = None
                text = (
                    f"the pattern '{pattern.source}' took too long in {_MAX_SLOW} lines: it is "
                    "switched off for the rest of this attempt; make the pattern simpler"
                )
                self._tell(Notice("pattern-off", text, detail=pattern.source))
        return None


def _parse_step(text: str | None) -> int | None:
    """Parses the text that a pattern caught as a step; None: it is no number of 1 to 18 digits."""
    return int(text) if text is not None and re.fullmatch(r"\d{1,18}", text) else None


class OutputFile:
    """The bounded record of one worker's output in files.

    If the disk fails, a person is told once. The lost bytes are counted, and a line in the file
    tells their number once writing works again.
    """

    def __init__(self, path: Path, on_error: Tell, *, limit: int = MAX_OUTPUT) -> None:
        self._path = path
        self._on_error = on_error
        self._part = limit // _PARTS
        self._margin = min(_ROOM_FOR_A_LINE, self._part // 8)
        self._file: io.FileIO | None = None
        self._size = 0
        self._is_within_line = False
        self._begins = 0
        """Offset in the newest part at which the output begins, after our own first line."""
        self._previous = 0
        """Bytes of output in the previous part, which is dropped next; 0: no such part."""
        self._dropped = 0
        self._lost = 0
        self._digest = LogDigest()
        self._reading = threading.Lock()
        """Guards `_digest`: while the attempt is judged, output may still come, because a process
        outside the job can have the pipe open."""
        self._failed = False

    def write(self, chunk: bytes) -> None:
        """Add `chunk`; make the file if there is none. Never raises: reading must go on, because a
        full pipe blocks the trainer."""
        with self._reading:
            self._digest.feed(chunk)
        rest = memoryview(chunk)
        try:
            while rest or self._file is None:
                rest = rest[self._write_some(rest) :]
            self._failed = False
        except OSError as error:
            self._lost += len(rest)
            if not self._failed:
                self._on_error(
                    Notice(
                        "file-unwritable",
                        f"{self._path.name} cannot be written: {error.strerror}",
                        place=self._path.name,
                        reason=error.strerror,
                    )
                )
            self._failed = True

    def evidence(self) -> str:
        """Returns the parts of the output that may tell why the worker ended, written or not."""
        with self._reading:
            return self._digest.text()

    def close(self) -> None:
        """Close the newest part."""
        if self._file is not None:
            self._file.close()

    def _write_some(self, data: memoryview) -> int:
        """Write what fits into the newest part, up to the end of a line if possible.

        Returns the number of bytes written; 0: a new part was begun, and all of `data` is left.

        Raises:
            OSError: the disk takes nothing.
        """
        if self._file is None:
            self._file = writing.opened(self._path)
            self._size = os.fstat(self._file.fileno()).st_size
        if self._lost:
            self._put(f"\n[supervise: {self._lost} bytes could not be written here]\n".encode())
            self._lost = 0
        room = max(0, self._part - self._size)
        if len(data) > room - self._margin:
            whole_lines = bytes(data[:room]).rfind(b"\n") + 1
            if not whole_lines and self._size > self._begins:
                if len(data) <= room and self._is_within_line:
                    return self._put(data)
                self._rotate()
                return 0
            data = data[: whole_lines or room]
        return self._put(data)

    def _put(self, data: bytes | memoryview) -> int:
        assert self._file is not None
        written = self._file.write(data)
        self._size += written
        self._is_within_line = written > 0 and data[written - 1] != ord("\n")
        return written

    def _rotate(self) -> None:
        """Rename the newest part, and begin another one with a line about the parts before it."""
        first, previous = _older_parts(self._path)
        if first.exists():
            self._path.replace(previous)
            self._dropped += self._previous
            self._previous = self._size - self._begins
            note = f"the output before this is in {previous.name}"
            if self._dropped:
                note += f"; {self._dropped} bytes between it and {first.name} were dropped"
        else:
            self._path.replace(first)
            note = f"the output before this is in {first.name}"
        self.close()
        self._file = None
        self._file, self._size = writing.opened(self._path, new=True), 0
        self._begins = self._put(f"[supervise: {note}]\n".encode())


def _older_parts(path: Path) -> tuple[Path, Path]:
    """Returns the paths of the first part, and of the one before the newest."""
    return path.with_name(f"{path.stem}.first.log"), path.with_name(f"{path.stem}.previous.log")


def read_evidence(path: Path) -> str:
    """Returns the text that may tell why a worker ended, from all parts of its output; empty if
    there are none.

    Somebody else may have changed these files. So at most `MAX_OUTPUT` bytes of each are read, from
    its end.
    """
    digest = LogDigest()
    first, previous = _older_parts(path)
    for part in (first, previous, path):
        try:
            with open_file(part) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_OUTPUT))
                rest = MAX_OUTPUT
                while rest > 0 and (chunk := file.read(_CHUNK)):
                    digest.feed(chunk)
                    rest -= len(chunk)
        except OSError:
            continue
    return digest.text()
