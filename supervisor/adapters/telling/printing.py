"""The standard output of a command that prints something and ends (`validate`, `status`, ...).

An error of standard output is raised as `UnprintableError`, so it is not taken for an error of a
file that the command reads. If the reader is gone (`| head -n 1`), that is no error: it has read
enough.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO


class UnprintableError(Exception):
    """Standard output cannot be written. The text says why; it is empty if the reader is gone."""


class _Output(io.TextIOBase):
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """See `io.TextIOBase`."""
        return self._stream.encoding

    def write(self, text: str) -> int:
        try:
            return self._stream.write(self._encodable(text))
        except OSError as error:
            raise _unprintable(error) from error

    def _encodable(self, text: str) -> str:
        """Returns `text` with an escape for each character that the stream's encoding lacks."""
        coding = self._stream.encoding or "utf-8"  # a stream in memory has none
        return text.encode(coding, "backslashreplace").decode(coding)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _unprintable(error) from error


def _unprintable(error: OSError) -> UnprintableError:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # else Python tries again to write the rest at exit
    os.close(null)
    return UnprintableError("" if isinstance(error, BrokenPipeError) else error.strerror)


@contextmanager
def printing() -> Iterator[None]:
    """Write all that the block prints to standard output, at the latest at the end of the block.

    Raises:
        UnprintableError: standard output cannot be written.
    """
    output = _Output(sys.stdout)
    with redirect_stdout(output):
        try:
            yield
        finally:
            output.flush()
