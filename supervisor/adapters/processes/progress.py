"""Reads a worker's progress pipe: bounded, and trusting nothing that comes out of it.

Steps that were reported in a row are handed on as one message, with the first and the last: a
worker that floods the pipe, or a supervisor that was busy for a while, costs no more than that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from supervisor.protocol import environment
from supervisor.protocol.messages import MAX_LINE, Message, ProtocolError, StepMessage, decode

_PIPE_SIZE = 1 << 18
_SHARE = 4 * MAX_LINE
"""Bytes that are read in one turn of the main loop: a pipe's worth of messages takes a second."""


class Pipe(Protocol):
    """A pipe of which a process has, or will have, the other end."""

    read_end: int
    write_end: int

    @property
    def identity(self) -> str:
        """What names the pipe to whoever has its write end."""
        ...

    def read(self, most: int) -> bytes:
        """At most so many bytes; none once the last writer has closed it.

        Raises:
            BlockingIOError: there is nothing to read now.
        """
        ...

    def close_read_end(self) -> None:
        """Nothing more is read."""
        ...

    def close_write_end(self) -> None:
        """Whoever writes has it."""
        ...


class OsPipe:
    """See `Pipe`: one of this system."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        with contextlib.suppress(OSError):  # this user's share of pipe memory is used up
            fcntl.fcntl(self.read_end, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)

    @property
    def identity(self) -> str:
        """See `Pipe`."""
        return environment.identity(self.write_end)

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
        """Hand each message to `on_message`, and the first line that is none to `on_refused`.

        `pipe` is what to read; None: a new one of this system.
        """
        self._pipe = pipe if pipe is not None else OsPipe()
        self._on_message = on_message
        self._on_refused = on_refused
        self._refused = False
        self._line = b""
        self._skipping = False
        self._step: StepMessage | None = None
        self.is_calm = True
        """Whether the last read brought no more than a few messages."""
        self.is_behind = False
        """Whether the last read may have left something: the worker may wait for room, or leave
        out steps."""
        self.read_end, self.write_end = self._pipe.read_end, self._pipe.write_end

    def to_environment(self) -> dict[str, str]:
        """What the worker needs in its environment to find the pipe."""
        return {
            environment.PROGRESS_FD: str(self.write_end),
            environment.PROGRESS_PIPE: self._pipe.identity,
        }

    def close_write_end(self) -> None:
        """The worker has it now."""
        self._pipe.close_write_end()

    def abandon(self) -> None:
        """Close both ends: there is no worker."""
        self.close_write_end()
        self.close()

    def close(self) -> None:
        """Nothing more is expected."""
        self._pipe.close_read_end()

    def read(self, most: int = _SHARE) -> bool:
        """Read a part; False once the last writer has closed it."""
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
        """Read a whole pipe's worth: who has written it has ended."""
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
