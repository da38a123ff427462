"""The standard output of a command that prints something and ends (`validate`, `status`, ...).

Its errors are told from those of the files that the command is about. A reader who is gone
(`| head -n 1`) has read enough: that is no error.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO


class UnprintableError(Exception):
    """Standard output cannot be written; the text says why, and is empty if the reader is gone."""


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
        """`text` with an escape for each character that the encoding of the stream lacks."""
        coding = self._stream.encoding or "utf-8"  # a stream in memory has none
        return text.encode(coding, "backslashreplace").decode(coding)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _unprintable(error) from error


def _unprintable(error: OSError) -> UnprintableError:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what could not be written yet would be tried again at the very end
    os.close(null)
    return UnprintableError("" if isinstance(error, BrokenPipeError) else error.strerror)


@contextmanager
def printing() -> Iterator[None]:
    """Have all that is printed in the block on standard output at its end.

    Raises:
        UnprintableError: it cannot be.
    """
    output = _Output(sys.stdout)
    with redirect_stdout(output):
        try:
            yield
        finally:
            output.flush()
