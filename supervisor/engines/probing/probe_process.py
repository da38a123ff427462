"""The process that is asked about the devices (`trainer.probe`): its start, its words, its end."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from supervisor.diagnosis.failure import WorkerExit
from supervisor.engines.host_port import Host
from supervisor.protocol.reading import SMALL, UnreadableError, parse_object

_CHUNK = 1 << 16
_FROM_OUTSIDE = ("SIGHUP", "SIGINT", "SIGKILL", "SIGTERM")
"""Signals that no broken device has a process end by: a person or the kernel sends them."""


class ProbeProcess:
    """The process, the socket that leads to it, and what it has said."""

    def __init__(self, machine: Host, env: Mapping[str, str]) -> None:
        """Start it.

        Raises:
            OSError: it cannot be started.
        """
        self.known: dict[str, Any] | None = None
        """The last of its answers: each tells all."""
        self.words = 0
        """How often it has said something."""
        self.hung: str | None = None
        """Why it was killed, if it was."""
        self.asked = 0.0
        self.start: float | None = None
        """Seconds from the question until its backend was up."""
        self._unread = b""
        self._output = machine.output_file()
        self._connection = machine.connection()
        theirs = self._connection.theirs
        argv = [sys.executable, "-P", "-m", "trainer.probe", str(theirs)]
        try:
            self.process = machine.start(
                argv, env=env, output=self._output.descriptor, inherit=(theirs,)
            )
        except OSError:
            self._connection.close()
            self._output.close()
            raise
        finally:
            self._connection.close_theirs()

    @property
    def descriptor(self) -> int:
        """Can be read when `read` has something to take."""
        return self._connection.descriptor

    def ask(self, question: Mapping[str, Any]) -> bool:
        """Ask it; False: it is gone, as its end tells."""
        try:
            self._connection.send(json.dumps(question).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def read(self) -> bool:
        """Take what it has said; False once it can say no more."""
        try:
            while chunk := self._connection.receive(_CHUNK):
                *lines, self._unread = (self._unread + chunk).split(b"\n")
                for line in lines:
                    with suppress(UnreadableError):  # a library's, which is no word of its own
                        self.known = parse_object(line, "the answer of the probe")
                        self.words += 1
                self._unread = self._unread[:SMALL]
        except BlockingIOError:
            return True
        except ConnectionResetError:
            pass
        return False

    def last_line(self) -> str:
        """The last line of its output, where an error is told."""
        text = self._output.tail(_CHUNK).decode(errors="replace")
        return text.strip().rpartition("\n")[2]

    @property
    def at_device(self) -> int | None:
        """The place of the device that it is busy with."""
        at = self.known["at"] if self.known is not None else None
        return at if isinstance(at, int) else None

    @property
    def has_begun(self) -> bool:
        """Whether it has come as far as initialising the backend."""
        return self.known is not None

    @property
    def is_up(self) -> bool:
        """Whether its backend is up."""
        return self.known is not None and self.known["at"] != "start"

    def most_tries(self, ended: WorkerExit) -> int:
        """With how many processes in a row to ask the same before this end counts: who was killed
        from outside, or hung before it got to a device, has said nothing about the devices."""
        if self.hung is not None:
            return 1 if self.is_up else 2
        return 3 if ended.signal in _FROM_OUTSIDE else 1

    def problem(self, ended: WorkerExit, tries: int = 1) -> str:
        """Why it has found nothing out, like the `tries` - 1 before it."""
        why = self.hung or self.last_line() or str(ended)
        times = f" ({tries} times in a row)" if tries > 1 else ""
        return f"the probe of the devices ended {self.where()}{times}: {why}"

    def where(self) -> str:
        """How far it has got, for people."""
        if not self.is_up:
            return "before the first device"
        device = self.at_device
        return f"on device {device}" if device is not None else "on all devices together"

    def kill(self) -> None:
        """Kill it, with all of its process group."""
        self.process.signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Let go of it: it has ended."""
        self._connection.close()
        self.process.close()
        self._output.close()
