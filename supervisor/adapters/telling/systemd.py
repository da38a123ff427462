"""Tells systemd the state of the job, and that the main loop is alive (sd_notify, `Type=notify`).

A timer of the main loop sends the signs of life for systemd's watchdog. So a supervisor that hangs
stops sending them, and systemd replaces it. Nothing here can block the job or end it: a message
that cannot be sent is sent together with the next one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from supervisor.core.policy import RestartPolicy
from supervisor.core.state import Status
from supervisor.narrative.standing import standing, standing_line
from supervisor.ports import CallLater, Clock, Transition

_STATUS_INTERVAL = 1.0
"""Least seconds between two messages while the status stays the same."""
_TICK = 5.0
"""Most seconds between two signs of life; seconds between two looks for an unsent status."""
_SIGNS_PER_PERIOD = 3
"""Signs of life sent in each period of systemd's watchdog."""
_AFTER_GRACE = 30.0
"""Seconds beyond the grace period in which the supervisor kills the workers, confirms that they are
gone, and writes the journal."""
_MAX_UNSENT = 20
"""Assignments kept while systemd cannot be reached: the newest."""


class Notifier:
    """Sends messages to the socket that systemd listens to."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._unsent: list[str] = []

    def send(self, *assignments: str) -> None:
        """Send assignments (`KEY=value`), after those that could not be sent before."""
        self._unsent += assignments
        try:
            self._socket.sendto("\n".join(self._unsent).encode("utf-8", "replace"), self._address)
        except OSError:  # systemd is busy, or is being restarted
            del self._unsent[:-_MAX_UNSENT]
        else:
            self._unsent.clear()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class SystemdWatchdog:
    """Sends signs of life of the main loop. It is not an observer, because a failed observer is
    switched off, and systemd kills a supervisor whose signs of life stop."""

    def __init__(self, notifier: Notifier, most: float, call_later: CallLater) -> None:
        """`most`: the longest time between two signs of life that systemd allows, in seconds."""
        self._notifier = notifier
        self._period = min(_TICK, most / _SIGNS_PER_PERIOD)
        self._call_later = call_later
        self._send_sign_of_life()

    def _send_sign_of_life(self) -> None:
        self._notifier.send("WATCHDOG=1")
        self._call_later(self._period, self._send_sign_of_life)


class ServiceManager:
    """An observer (`ports.Observer`) that tells systemd the status of the job."""

    def __init__(
        self, notifier: Notifier, policy: RestartPolicy, clock: Clock, call_later: CallLater
    ) -> None:
        self._notifier = notifier
        self._policy = policy
        self._clock = clock
        self._call_later = call_later
        self._ready = False
        self._status = ""
        self._told = ""
        self._told_at = float("-inf")
        self._tick()

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        before, after = transition.before, transition.after
        # A backoff and the end of the job count as up too: systemd waits 90 seconds for READY, and
        # takes an end before READY for a failure, even with exit code 0.
        up = after.status in (Status.RUNNING, Status.BACKOFF) or after.status.terminal
        if up and not self._ready:
            self._ready = True
            self._notifier.send("READY=1")
        self._status = standing_line(standing(after, self._policy))
        if (
            after.status is not before.status
            or self._clock.now() >= self._told_at + _STATUS_INTERVAL
        ):
            self._tell_status()
        if after.drains and not before.drains:
            deadline = after.group.deadline if after.group is not None else None
            left = deadline - transition.event.at if deadline is not None else 0.0
            needed = max(left, self._policy.grace_period) + _AFTER_GRACE
            self._notifier.send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={needed * 1e6:.0f}")

    def _tick(self) -> None:
        self._tell_status()
        self._call_later(_TICK, self._tick)

    def _tell_status(self) -> None:
        if self._status != self._told:
            self._told, self._told_at = self._status, self._clock.now()
            self._notifier.send(f"STATUS={self._status}")


def notifier_of(environ: Mapping[str, str]) -> Notifier | None:
    """Returns a notifier to the systemd that started this process; None: it asks for no
    messages."""
    address = environ.get("NOTIFY_SOCKET", "")
    return Notifier(address) if address.startswith(("/", "@")) else None


def watchdog_period(environ: Mapping[str, str]) -> float | None:
    """Returns the longest time between two signs of life that systemd allows this process, in
    seconds; None: it asks for none."""
    period = environ.get("WATCHDOG_USEC", "")
    ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(period) / 1e6 if period.isdecimal() and ours and int(period) > 0 else None
