"""The supervisor's end of the socket to the guard: messages as `host.guard` describes them."""

from __future__ import annotations

import marshal
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LARGEST = 1 << 16
_CLOSED = socket.MSG_CMSG_CLOEXEC
PATIENCE = {"spawn": 10.0, "end": 3.0, "orphans": 0.5, "exited": 0.5}
"""Seconds to wait for an answer, by request; the main loop stands still meanwhile. The guard itself
never blocks, but it can be frozen or get no CPU time, and a process that it starts may wait for the
disk that holds its program or the record."""
_ANSWERS = ("started", "failed", "ended", "orphans")


@dataclass(frozen=True, slots=True)
class Started:
    """A process that the guard has started."""

    pid: int
    pidfd: int


class GuardSilentError(OSError):
    """The guard is gone, or does not answer."""


class GuardSocket:
    """Sends requests to the guard and reads its messages. `send` is safe in any thread; the caller
    holds a lock for everything else."""

    def __init__(
        self, connection: socket.socket, on_late: Callable[[Any, list[int]], None]
    ) -> None:
        """`on_late` is called with each answer that came too late, and its descriptors."""
        self._connection = connection
        self._on_late = on_late
        connection.setblocking(False)
        self._number = 0
        self.unanswered = 0
        """Number of answers that did not come in time since the guard's last message."""
        self._sending = threading.Lock()
        self.exits: dict[int, int] = {}
        """Exit codes that the guard has sent and nobody has asked for yet, by pid, as
        `subprocess` has them (-N: signal N)."""
        self.watcher: tuple[int, int] | None = None
        """Pid and start time of the watcher; None: there is none."""
        self.broken: str | None = None
        """The internal error that ended the guard."""

    def send(self, *message: object, descriptors: Sequence[int] = ()) -> None:
        """Send a message.

        Raises:
            GuardSilentError: the guard is gone, or has read nothing for a while.
        """
        data = [marshal.dumps(message)]  # type: ignore[arg-type]
        try:
            with self._sending:
                socket.send_fds(self._connection, data, list(descriptors))
        except OSError as error:
            raise GuardSilentError(error.errno, "the guard process reads no messages") from error

    def next_number(self) -> int:
        """Return the number for the next request."""
        self._number += 1
        return self._number

    def ask(
        self, what: str, number: int, *values: object, descriptors: Sequence[int] = ()
    ) -> tuple[Any, list[int]]:
        """Send the request `number`, and return its answer with the answer's descriptors.

        Raises:
            GuardSilentError: no answer came in time.
        """
        self.send(what, number, *values, descriptors=descriptors)
        end = time.monotonic() + PATIENCE[what]
        while (heard := self._hear(end)) is not None:
            message, came = heard
            if message[0] in _ANSWERS:
                if message[1] == number:
                    return message, came
                self._on_late(message, came)
        self.unanswered += 1
        raise GuardSilentError(0, "the guard process does not answer")

    def hear_of(self, pid: int) -> bool:
        """Wait for the exit code of `pid`, which has ended; False: none came in time."""
        end = time.monotonic() + PATIENCE["exited"]
        while pid not in self.exits:
            if not self._take(end):
                self.unanswered += 1
                return False
        return True

    def hear(self) -> None:
        """Read all messages that have arrived, without waiting."""
        while self._take(0.0):
            pass

    def close(self) -> None:
        """Close the socket: the guard kills what is left of the job, and ends."""
        self._connection.close()

    def _take(self, end: float) -> bool:
        """Handle the next message, which answers no waiting request; False: none by time `end`."""
        heard = self._hear(end)
        if heard is not None and heard[0][0] in _ANSWERS:
            self._on_late(*heard)
        return heard is not None

    def _hear(self, end: float) -> tuple[Any, list[int]] | None:
        """Read and register the next message; None: none by the time `end`."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        if not poll.poll(1000 * max(0.0, end - time.monotonic())):
            return None
        try:
            data, came, _, _ = socket.recv_fds(self._connection, _LARGEST, 4, _CLOSED)
        except OSError:
            return None
        if not data:
            return None
        self.unanswered = 0
        message: Any = marshal.loads(data)
        match message:
            case ("exited", pid, code):
                self.exits[pid] = code
            case ("started", _, pid, _):
                self.exits.pop(pid, None)  # of an earlier process with this pid; never asked for
            case ("watcher", pid, started):
                self.watcher = pid, started
            case ("broken", text):
                self.broken = text
        return message, came


def packed(argv: Sequence[str], env: Mapping[str, str], inherit: Sequence[int]) -> int:
    """Write what is to be started to an anonymous file, as it may exceed a message; returns its
    descriptor."""
    program = os.fsencode(argv[0])
    candidates = [program]
    if b"/" not in program:
        folders = os.get_exec_path(env)
        candidates = [os.path.join(os.fsencode(folder), program) for folder in folders]  # noqa: PTH118
    environ = {os.fsencode(name): os.fsencode(text) for name, text in env.items()}
    told = ([os.fsencode(text) for text in argv], candidates, environ, list(inherit))
    descriptor = os.memfd_create("order")
    with open(descriptor, "wb", closefd=False) as file:
        marshal.dump(told, file)
    return descriptor
