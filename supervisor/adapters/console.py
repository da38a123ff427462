"""Our standard output where it is no terminal: log lines and rank 0's output."""

from __future__ import annotations

import os
import select
import threading

_PATIENCE = 1.0


class PlainConsole:
    """Writes to a descriptor and never waits long: a reader that stopped must not stop training."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._at_line_start = True
        self._dropped = 0

    def line(self, text: str) -> None:
        """Write one line of our own, on a line of its own."""
        with self._lock:
            start = b"" if self._at_line_start else b"\n"
            self._write(start + text.encode("utf-8", "replace") + b"\n")
            self._at_line_start = True

    def mirror(self, chunk: bytes) -> None:
        """Pass on a part of a worker's output."""
        with self._lock:
            self._write(chunk)
            self._at_line_start = chunk.endswith(b"\n")

    def _write(self, data: bytes) -> None:
        if self._dropped and self._ready(0):
            note = f"\n[supervise: {self._dropped} bytes were not shown: nobody read them]\n"
            self._dropped = 0
            data = note.encode() + data
        rest = memoryview(data)
        while rest:
            if not self._ready(0 if self._dropped else _PATIENCE):
                self._dropped += len(rest)
                return
            try:
                rest = rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]
            except OSError:  # the reader is gone for good; run.log has it all
                self._dropped += len(rest)
                return

    def _ready(self, patience: float) -> bool:
        return bool(select.select([], [self._descriptor], [], patience)[1])
