"""Tells systemd how the job stands, and that the loop is alive (sd_notify, `Type=notify`).

The watchdog is petted by a timer of the loop itself: a supervisor that hangs stops petting, and
systemd replaces it. Nothing here can block or fail the job: what cannot be sent waits for the next
time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from supervisor.core.policy import RestartPolicy
from supervisor.core.state import Status
from supervisor.narrative.standing import in_a_sentence, standing
from supervisor.ports import CallLater, Clock, Transition

_STATUS_INTERVAL = 1.0
_TICK = 5.0
_PETS_PER_PERIOD = 3
_AFTER_GRACE = 30.0
"""What the supervisor needs beyond the grace period to kill, confirm and write down."""
_MAX_UNSENT = 20


class Notifier:
    """The socket that systemd listens to."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._unsent: list[str] = []

    def send(self, *assignments: str) -> None:
        """Send assignments, after those that could not be sent before."""
        self._unsent += assignments
        try:
            self._socket.sendto("\n".join(self._unsent).encode("utf-8", "replace"), self._address)
        except OSError:  # systemd is busy, or being replaced
            del self._unsent[:-_MAX_UNSENT]
        else:
            self._unsent.clear()

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()


class Watchdog:
    """Sends signs of life of the main loop. This is no observer: systemd kills a supervisor whose
    signs of life stop, so no failed observer may take them along."""

    def __init__(self, notifier: Notifier, most: float, call_later: CallLater) -> None:
        """`most` is the most seconds between two signs of life."""
        self._notifier = notifier
        self._period = min(_TICK, most / _PETS_PER_PERIOD)
        self._call_later = call_later
        self._pet()

    def _pet(self) -> None:
        self._notifier.send("WATCHDOG=1")
        self._call_later(self._period, self._pet)


class ServiceManager:
    """Tells systemd the status of the job, see `ports.Observer`."""

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
        # Waiting and ending count as up too: systemd gives a start 90 seconds, and takes an end
        # before it, even with exit code 0, for a failure.
        up = after.status in (Status.RUNNING, Status.BACKOFF) or after.status.terminal
        if up and not self._ready:
            self._ready = True
            self._notifier.send("READY=1")
        self._status = in_a_sentence(standing(after, self._policy))
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
    """What speaks to the systemd that started this process, if one did and wants to hear of it."""
    address = environ.get("NOTIFY_SOCKET", "")
    return Notifier(address) if address.startswith(("/", "@")) else None


def watchdog_period(environ: Mapping[str, str]) -> float | None:
    """The most seconds between two signs of life that systemd wants of this process; None: it
    wants none."""
    period = environ.get("WATCHDOG_USEC", "")
    ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(period) / 1e6 if period.isdecimal() and ours and int(period) > 0 else None
