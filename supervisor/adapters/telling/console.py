"""Our standard output where it is no terminal: log lines and rank 0's output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from supervisor.host.outlet import FLUSH_PATIENCE, Outlet, Part, write


class PlainConsole:
    """Writes to a descriptor; whoever reads it never makes the main loop wait."""

    def __init__(self, descriptor: int, tell: Callable[[str], None]) -> None:
        """`tell` is told once why it cannot be written."""
        self._descriptor = descriptor
        self._is_at_line_start = True
        self._outlet = Outlet(self._show, tell)

    def line(self, text: str) -> None:
        """Write one line of our own, on a line of its own."""
        self._outlet.line(text.encode("utf-8", "replace"))

    def mirror(self, chunk: bytes) -> None:
        """Pass on a part of a worker's output, as it is."""
        self._outlet.output(chunk)

    def close(self, patience: float = FLUSH_PATIENCE) -> None:
        """Write what is left, and wait at most `patience` seconds for it."""
        self._outlet.close(patience)

    def _show(self, parts: Sequence[Part]) -> Iterator[int]:
        for part in parts:
            start = b"\n" if part.is_ours and not self._is_at_line_start else b""
            end = b"\n" if part.is_ours else b""
            data = start + part.data + end
            yield from write(self._descriptor, data)
            self._is_at_line_start = data.endswith(b"\n")
