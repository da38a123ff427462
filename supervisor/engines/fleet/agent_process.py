"""The agent's process: `python -m supervisor.engines.fleet.agent_process FD`.

FD is a stream socket to the relay that has started it (`transport.py`). When the socket is closed,
or this process dies, the guard kills what was started here.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
from dataclasses import replace
from functools import partial

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.kernel.reactor import Reactor
from supervisor.core.events import SilenceExcused
from supervisor.engines.fleet.agent import Agent
from supervisor.engines.fleet.agent_ranks import LocalRanks
from supervisor.engines.fleet.fleet_messages import MessageError, Report, encoded
from supervisor.engines.fleet.own_announcements import OwnAnnouncements
from supervisor.engines.fleet.payload_frames import FrameError, Frames, framed
from supervisor.engines.guard_watch import keep_guard
from supervisor.host import gang_config
from supervisor.host.identity import Identity
from supervisor.host.outlet import say_on_stderr

MACHINE = "SUPERVISE_MACHINE"
"""Names the machine in place of its boot id, for tests with many agents on one machine."""
_CHUNK = 1 << 16
_MAX_UNSENT = 4096
"""Messages that may wait for a relay that does not read. With more the agent ends."""


class _Line:
    """The socket to the relay. A thread writes, so a relay that does not read blocks nobody."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = Frames()
        self._unsent: queue.Queue[bytes] = queue.Queue(_MAX_UNSENT)
        threading.Thread(target=self._write, name="to the leader", daemon=True).start()
        self.is_closed = False

    def say(self, report: Report) -> None:
        """Send a message; never blocks."""
        try:
            self._unsent.put_nowait(framed(encoded(report)))
        except queue.Full:
            self.is_closed = True

    def read(self) -> list[bytes]:
        """Returns the payloads that have come. Called when there is something to read."""
        try:
            data = self._connection.recv(_CHUNK)
            payloads = self._frames.feed(data)
        except (OSError, FrameError):
            data, payloads = b"", []
        self.is_closed |= not data
        return payloads

    def _write(self) -> None:
        while True:
            try:
                self._connection.sendall(self._unsent.get())
            except OSError:  # the reader sees that it is closed
                return


def serve(connection: socket.socket) -> None:
    """Run an agent until `connection` is closed, or no leader is heard for long."""
    clock = SystemClock()
    reactor = Reactor(clock)
    with keep_guard(reactor, clock) as guard:
        line = _Line(connection)
        make_ranks = partial(LocalRanks, reactor, clock, guard, os.environ)
        announcements = OwnAnnouncements(reactor, clock, os.environ)
        agent = Agent(
            reactor,
            clock,
            guard.kill_at,
            make_ranks,
            line.say,
            _identity(),
            ask_announcers=announcements.ask,
            config=os.environ.get(gang_config.VARIABLE, ""),
        )

        def read() -> None:
            for payload in line.read():
                try:
                    agent.heard(payload)
                except MessageError as error:
                    say_on_stderr(f"supervise agent: {error}")
            if line.is_closed:  # so that the wait below ends at once
                reactor.post(SilenceExcused(clock.now(), 0.0))

        reactor.watch(connection.fileno(), read)
        while not (line.is_closed or agent.is_alone):
            agent.take(reactor.wait(clock.now() + 1.0))


def _identity() -> Identity:
    """Returns who this process is. A test may give agents of one machine different machines."""
    ours = Identity.of_this_process()
    return replace(ours, boot=os.environ.get(MACHINE, ours.boot))


def main() -> None:
    """Run as `... FD`."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    serve(socket.socket(fileno=descriptor))


if __name__ == "__main__":
    main()
