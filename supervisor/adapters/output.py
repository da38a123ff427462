"""Takes a worker's output: into its file, by patterns, and on to our own standard output.

A thread per worker, so that a busy supervisor never stops a trainer that prints.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_CHUNK = 64 * 1024
_MAX_LINE = 64 * 1024


@dataclass(frozen=True, slots=True)
class OutputPatterns:
    """What to look for in the output, line by line."""

    step: re.Pattern[str] | None = None
    on_step: Callable[[int], None] = field(default=lambda step: None)
    success: re.Pattern[str] | None = None


class OutputPump:
    """Reads one worker's stdout and stderr until the last process that holds them is gone."""

    def __init__(
        self,
        path: Path,
        patterns: OutputPatterns,
        mirror: Callable[[bytes], None] | None,
        on_error: Callable[[str], None],
    ) -> None:
        """Write to `path` and, if given, to `mirror`. `write_end` is for the worker."""
        self._on_error = on_error
        self._failed = False
        self.success_seen = False
        """Whether the success pattern occurred."""
        self._patterns = patterns
        self._mirror = mirror
        self._path = path
        self._read_end, self.write_end = os.pipe()
        self._line = b""
        self._thread = threading.Thread(target=self._pump, name="output", daemon=True)

    def start(self) -> None:
        """Close our copy of the write end and begin to read."""
        os.close(self.write_end)
        self._thread.start()

    def abandon(self) -> None:
        """Close both ends: there is no worker."""
        os.close(self.write_end)
        os.close(self._read_end)

    def finish(self, timeout: float) -> bool:
        """Wait until all output is read; False if somebody still holds the pipe."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _pump(self) -> None:
        looking = self._patterns.step is not None or self._patterns.success is not None
        with contextlib.ExitStack() as stack:
            file = self._open()
            if file is not None:
                stack.enter_context(file)
            while chunk := os.read(self._read_end, _CHUNK):
                if file is not None:
                    self._write(file, chunk)
                if self._mirror is not None:
                    self._mirror(chunk)
                if looking:
                    self._look(chunk)
        if looking and self._line:
            self._look(b"\n")
        os.close(self._read_end)

    def _open(self) -> io.FileIO | None:
        try:
            return self._path.open("ab", buffering=0)
        except OSError as error:
            self._fail(error)
            return None

    def _write(self, file: io.FileIO, chunk: bytes) -> None:
        try:
            rest = memoryview(chunk)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Tell it once. The reading goes on: a full pipe would stop the trainer."""
        if not self._failed:
            self._on_error(f"{self._path.name} cannot be written: {error.strerror}")
        self._failed = True

    def _look(self, chunk: bytes) -> None:
        # A progress bar ends what it shows with a carriage return.
        *lines, self._line = (self._line + chunk).replace(b"\r", b"\n").split(b"\n")
        self._line = self._line[-_MAX_LINE:]
        newest: int | None = None
        for raw in lines:
            text = raw.decode("utf-8", "replace")
            if self._patterns.step is not None and (match := self._patterns.step.search(text)):
                step = _step(match[1])
                newest = newest if step is None else step
            if self._patterns.success is not None and self._patterns.success.search(text):
                self.success_seen = True
        if newest is not None:
            self._patterns.on_step(newest)


def _step(text: str | None) -> int | None:
    """The step in what a pattern caught; None where it is no number, or far too long for one."""
    return int(text) if text is not None and re.fullmatch(r"\d{1,18}", text) else None


def read_tail(path: Path, limit: int = 64 * 1024) -> str:
    """The last `limit` bytes of a file as text; empty if it is not there."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
