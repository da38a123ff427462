"""Reads a worker's progress pipe: a bounded amount at a time, and without trusting the content.

Steps that were reported in a row are handed on as one message, with the first and the last step, if
their metrics are all finite, or all are not. So
a worker that floods the pipe costs little, and so does a backlog after the supervisor was busy.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Protocol

from supervisor.protocol import environment
from supervisor.protocol.messages import MAX_LINE, Message, ProtocolError, StepMessage, decode

_PIPE_SIZE = 1 << 18
_MAX_READ = 4 * MAX_LINE
"""Most bytes read in one turn of the main loop. To handle a full pipe at once takes a second."""


class Pipe(Protocol):
    """A pipe whose write end a process has, or will get."""

    read_end: int
    write_end: int

    @property
    def identity(self) -> str:
        """The pipe as `device:inode`; the process checks by it that its descriptor is the pipe."""
        ...

    def read(self, most: int) -> bytes:
        """Returns at most `most` bytes; none once the last writer has closed the pipe.

        Raises:
            BlockingIOError: there is nothing to read now.
        """
        ...

    def close_read_end(self) -> None:
        """Close the read end: nothing more is read."""
        ...

    def close_write_end(self) -> None:
        """Close our copy of the write end: the process has its own."""
        ...


class OsPipe:
    """Implements `Pipe` with a pipe of the kernel."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        with contextlib.suppress(OSError):  # this user has used up its share of pipe memory
            fcntl.fcntl(self.read_end, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)

    @property
    def identity(self) -> str:
        """See `Pipe`."""
        return environment.file_identity(self.write_end)

    def read(self, most: int) -> bytes:
        """See `Pipe`."""
        return os.read(self.read_end, most)

    def close_read_end(self) -> None:
        """See `Pipe`."""
        os.close(self.read_end)

    def close_write_end(self) -> None:
        """See `Pipe`."""
        os.close(self.write_end)


class ProgressPipe:
    """The supervisor's end of one worker's progress pipe."""

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_refused: Callable[[str], None],
        pipe: Pipe | None = None,
    ) -> None:
        """Call `on_message` with each message, and `on_refused` once, with what is wrong with the
        first invalid line.

        `pipe` is the pipe to read; None: a new `OsPipe`.
        """
        self._pipe = pipe if pipe is not None else OsPipe()
        self._on_message = on_message
        self._on_refused = on_refused
        self._refused = False
        self._line = b""
        self._skipping = False
        self._step: StepMessage | None = None
        self.is_calm = True
        """True if the last read brought no more than a few messages (`MAX_LINE` bytes)."""
        self.is_behind = False
        """True if the last read may have left something in the pipe. Then the pipe may be full, and
        the worker blocks, or leaves out steps."""
        self.read_end, self.write_end = self._pipe.read_end, self._pipe.write_end

    def to_environment(self) -> dict[str, str]:
        """Returns the environment variables by which the worker finds the pipe."""
        return {
            environment.PROGRESS_FD: str(self.write_end),
            environment.PROGRESS_PIPE: self._pipe.identity,
        }

    def close_write_end(self) -> None:
        """Close our copy of the write end: the worker has its own."""
        self._pipe.close_write_end()

    def abandon(self) -> None:
        """Close both ends, because the worker was not started."""
        self.close_write_end()
        self.close()

    def close(self) -> None:
        """Close the read end: no more reports are expected."""
        self._pipe.close_read_end()

    def read(self, most: int = _MAX_READ) -> bool:
        """Read at most `most` bytes and hand on their messages; False: every writer has closed the
        pipe."""
        try:
            chunk = self._pipe.read(most)
        except BlockingIOError:
            self.is_behind = False
            return True
        self.is_calm = len(chunk) <= MAX_LINE
        self.is_behind = len(chunk) == most
        self._take(chunk)
        self._hand_on_step()
        return bool(chunk)

    def drain(self) -> None:
        """Read all that is left in the pipe, after the worker has ended."""
        self.read(_PIPE_SIZE)

    def _take(self, chunk: bytes) -> None:
        *lines, self._line = (self._line + chunk).split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
            else:
                self._decode(line)
        if len(self._line) > MAX_LINE:
            self._refuse(f"line of more than {MAX_LINE} bytes")
            self._line, self._skipping = b"", True

    def _decode(self, line: bytes) -> None:
        try:
            message = decode(line)
        except ProtocolError as error:
            self._refuse(str(error))
            return
        if isinstance(message, StepMessage):
            if self._step is not None and _is_finite(self._step) != _is_finite(message):
                self._hand_on_step()
            earlier = self._step
            self._step = message if earlier is None else replace(message, first=earlier.earliest)
        elif message is not None:
            self._hand_on_step()
            self._on_message(message)

    def _hand_on_step(self) -> None:
        if self._step is not None:
            self._on_message(self._step)
            self._step = None

    def _refuse(self, reason: str) -> None:
        if not self._refused:
            self._refused = True
            self._on_refused(reason)


def _is_finite(message: StepMessage) -> bool:
    """Whether all metrics of a step are finite."""
    return all(map(isfinite, message.metrics.values()))
