"""Starts a probe process (`trainer.probe`), sends it the question, and reads its messages."""

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
"""Signals that a person or the kernel sends. A broken device does not end a process by them."""


class ProbeProcess:
    """A probe process, our end of its socket, and what it has reported."""

    def __init__(self, machine: Host, env: Mapping[str, str]) -> None:
        """Start the process.

        Raises:
            OSError: it cannot be started.
        """
        self.last_message: dict[str, Any] | None = None
        """Its last message; each message has all that is known by then. None: none has come."""
        self.messages_received = 0
        """How many messages have come."""
        self.hung: str | None = None
        """Why we killed it as hanging; None: we did not."""
        self.asked_at = 0.0
        """When it was asked, by the clock of `DeviceProbe`."""
        self.startup_seconds: float | None = None
        """Seconds from the question until its backend was up; None: it is not up yet."""
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
        """Becomes readable when `read` has something to take."""
        return self._connection.descriptor

    def ask(self, question: Mapping[str, Any]) -> bool:
        """Send the question. Returns False if the process has ended already."""
        try:
            self._connection.send(json.dumps(question).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def read(self) -> bool:
        """Read its new messages. Returns False once no more can come."""
        try:
            while chunk := self._connection.receive(_CHUNK):
                *lines, self._unread = (self._unread + chunk).split(b"\n")
                for line in lines:
                    with suppress(UnreadableError):  # printed by a library, no message
                        self.last_message = parse_object(line, "the answer of the probe")
                        self.messages_received += 1
                self._unread = self._unread[:SMALL]
        except BlockingIOError:
            return True
        except ConnectionResetError:
            pass
        return False

    def last_line(self) -> str:
        """Returns the last line of its output, where an error message usually is."""
        text = self._output.tail(_CHUNK).decode(errors="replace")
        return text.strip().rpartition("\n")[2]

    @property
    def at_device(self) -> int | None:
        """The place of the single device that it is busy with; None: it is not busy with one."""
        at = self.last_message["at"] if self.last_message is not None else None
        return at if isinstance(at, int) else None

    @property
    def has_begun(self) -> bool:
        """True if it has begun to initialise the backend."""
        return self.last_message is not None

    @property
    def is_up(self) -> bool:
        """True if its backend is up."""
        return self.last_message is not None and self.last_message["at"] != "start"

    def most_tries(self, ended: WorkerExit) -> int:
        """Returns how many processes in a row to ask the same question before an end such as
        `ended` counts.

        It is more than one if the process was killed from outside, or hung before its backend was
        up: then it has said nothing about the devices.
        """
        if self.hung is not None:
            return 1 if self.is_up else 2
        return 3 if ended.signal in _FROM_OUTSIDE else 1

    def problem(self, ended: WorkerExit, tries: int = 1) -> str:
        """Returns why it found nothing out, for people. `tries` processes in a row did not."""
        why = self.hung or self.last_line() or str(ended)
        if why.startswith("ModuleNotFoundError: "):
            why += f"; it runs in the environment of supervise: install that for {sys.executable}"
        times = f" ({tries} times in a row)" if tries > 1 else ""
        return f"the device probe ended {self.where()}{times}: {why}"

    def where(self) -> str:
        """Describes how far it has got, for people."""
        if not self.is_up:
            return "before it could use a device"
        device = self.at_device
        return f"on device {device}" if device is not None else "on all devices together"

    def kill(self) -> None:
        """Kill the process and its process group."""
        self.process.signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Free its socket, its output and its descriptor, after it has ended."""
        self._connection.close()
        self.process.close()
        self._output.close()
