"""Tells systemd how the job stands, and that the loop is alive (sd_notify, `Type=notify`).

The watchdog is petted by a timer of the loop itself: a supervisor that hangs stops petting, and
systemd replaces it. Nothing here can block or fail the job: what cannot be sent waits for the next
time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

from supervisor.core.policy import RestartPolicy
from supervisor.core.state import Status
from supervisor.narrative import status_line
from supervisor.ports import Clock, Transition

_STATUS_INTERVAL = 1.0
_TICK = 5.0
_PETS_PER_PERIOD = 3
_LAST_WORDS = 30.0
"""What the supervisor needs beyond the grace period to kill, confirm and write down."""
_MAX_UNSENT = 20


class ServiceManager:
    """The connection to systemd: an observer of the job, and a timer that runs in its loop."""

    def __init__(
        self,
        address: str,
        watchdog: float | None,
        policy: RestartPolicy,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """Notify the socket `address`; `watchdog` is the most seconds between two signs of life."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog = watchdog
        self._policy = policy
        self._clock = clock
        self._call_later = call_later
        self._unsent: list[str] = []
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
            self._send("READY=1")
        self._status = status_line(after, self._policy)
        if (
            after.status is not before.status
            or self._clock.now() >= self._told_at + _STATUS_INTERVAL
        ):
            self._tell_status()
        if after.drains and not before.drains:
            deadline = after.group.deadline if after.group is not None else None
            left = deadline - transition.event.at if deadline is not None else 0.0
            needed = max(left, self._policy.grace_period) + _LAST_WORDS
            self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={needed * 1e6:.0f}")

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    def _tick(self) -> None:
        if self._watchdog is not None:
            self._send("WATCHDOG=1")
        self._tell_status()
        period = _TICK if self._watchdog is None else min(_TICK, self._watchdog / _PETS_PER_PERIOD)
        self._call_later(period, self._tick)

    def _tell_status(self) -> None:
        if self._status != self._told:
            self._told, self._told_at = self._status, self._clock.now()
            self._send(f"STATUS={self._status}")

    def _send(self, *assignments: str) -> None:
        self._unsent += assignments
        try:
            self._socket.sendto("\n".join(self._unsent).encode("utf-8", "replace"), self._address)
        except OSError:  # systemd is busy, or being replaced
            del self._unsent[:-_MAX_UNSENT]
        else:
            self._unsent.clear()


def service_manager(
    environ: Mapping[str, str],
    policy: RestartPolicy,
    clock: Clock,
    call_later: Callable[[float, Callable[[], None]], None],
) -> ServiceManager | None:
    """The systemd that started this process and wants to hear from it, if one did."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return None
    period = environ.get("WATCHDOG_USEC", "")
    ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    asked = period.isdecimal() and ours and int(period) > 0
    watchdog = int(period) / 1e6 if asked else None
    return ServiceManager(address, watchdog, policy, clock, call_later)
