"""Asks the metadata server of Google Compute Engine whether this machine will be taken away.

It knows of a preemption earlier than the operating system does, and answers a request the moment it
changes its mind. What answers under its address may also be broken, or somebody else.
"""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote

from supervisor.host import bounded_http
from supervisor.ports import Announcement, Source
from supervisor.protocol.reading import UnreadableError, parse_object

HOST = "169.254.169.254"
"""metadata.google.internal: by its address, because name servers have bad days too."""
_LONG_POLL = 60
_PATIENCE = 15.0
"""What the server gets beyond a long poll before it is taken for dead."""
_NO_ETAG = "NONE"
"""That of no value: asked with it, the server answers at once."""
_PAUSE = 1.0
_SELDOM = 30.0
"""The pause where there is nothing to wait for."""
_NEWS_EVERY = 60.0
"""Seconds between two announcements of one key that do not end the job."""
_LONG_OVER = 86400.0
"""Seconds after its window for which a maintenance may still go on, or a clock be wrong."""
_NOTHING_YET = "no notifications have been received yet"
"""What the server says of maintenance where none is known; some do so with 503."""
_MAX_TEXT = 300
_MAX_VALUE = 4096


def sources(host: str) -> list[Source]:
    """All keys of the server at `host` that may announce something."""
    return [*(GceMetadata(host, key) for key in _MEANING), GceMaintenance(host)]


_MEANING = {
    "instance/preempted": {"TRUE": True},
    "instance/maintenance-event": {
        "TERMINATE_ON_HOST_MAINTENANCE": True,
        "MIGRATE_ON_HOST_MAINTENANCE": False,
    },
}
"""The keys to watch, and for each value that is an announcement whether the machine is doomed. A
live migration is not: it pauses the machine, and the job goes on. Values not here are none."""


class GceMetadata:
    """One key of the metadata server of Google Compute Engine."""

    pause = _PAUSE
    quick = True
    form = ""
    """What else to ask for."""

    def __init__(self, host: str, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._key = key
        self._clock = clock
        self._etag = _NO_ETAG
        self._told: Announcement | None = None
        self._next_news = -math.inf

    def __str__(self) -> str:
        return f"the metadata server at {self._host}"

    def look(self) -> Announcement | None:
        """See `Source`: answers at once the first time, then when the value changes."""
        status, value = self._ask()
        announcement = self._announced(status, value)
        if announcement == self._told:  # another ETag of the same value
            return None
        if announcement is not None and not announcement.doomed:
            if self._clock() < self._next_news:
                return None  # a look after that tells what stands then
            self._next_news = self._clock() + _NEWS_EVERY
        self._told = announcement
        return announcement

    def _announced(self, status: int, value: str) -> Announcement | None:
        if status != http.client.OK:
            raise OSError(f"status {status}")
        doomed = _MEANING[self._key].get(value)
        if doomed is None:
            return None
        return Announcement(f"{self} says {self._key} is {value}", doomed)

    def _ask(self) -> tuple[int, str]:
        """The status, and the value; both are of a metadata server."""
        seen = quote(self._etag, safe="")
        query = f"wait_for_change=true&timeout_sec={_LONG_POLL}&last_etag={seen}{self.form}"
        # No urllib: it would ask a proxy, whose metadata would be another machine's.
        answer = bounded_http.get(
            self._host,
            f"/computeMetadata/v1/{self._key}?{query}",
            {"Metadata-Flavor": "Google"},
            seconds=_LONG_POLL + _PATIENCE,
            most=_MAX_VALUE,
        )
        if answer.headers.get("Metadata-Flavor") != "Google":
            raise OSError("what answers is no metadata server")
        if answer.status == http.client.OK:
            self._etag = (answer.headers.get("ETag") or _NO_ETAG)[:_MAX_TEXT]
        return answer.status, answer.body.decode("utf-8", "replace").strip()


class GceMaintenance(GceMetadata):
    """Maintenance of the host, announced with its window hours or days before.

    It is told while it is PENDING; once it is ONGOING the machine is about to stop, as a TPU is not
    migrated live. One whose window is long over is told and does not end the job, which could never
    run here otherwise: what does stop the machine is announced by the other keys, too. Where none
    is known, servers answer NONE or {}, or say so with 200 or 503; machines that get no such
    notices lack the key (404). Fields and answers: cloud.google.com/tpu/docs/view-maintenance-
    notifications, .../compute/docs/instances/monitor-plan-host-maintenance-event;
    GoogleCloudPlatform/sapagent, which takes the error for "none", too.
    """

    form = "&alt=json"

    def __init__(
        self,
        host: str,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(host, "instance/upcoming-maintenance", clock)
        self._unix_time = unix_time

    def _announced(self, status: int, value: str) -> Announcement | None:
        waits = status == http.client.OK and self._etag != _NO_ETAG
        self.pause = _PAUSE if waits else _SELDOM
        nothing = status == http.client.SERVICE_UNAVAILABLE and _NOTHING_YET in value
        if nothing or status == http.client.NOT_FOUND or value.strip('"') == "NONE":
            return self._withdrawn()
        if status != http.client.OK:
            raise OSError(f"status {status}")
        told = _maintenance(value)
        state = told.get("maintenancestatus", "").upper()
        if state not in ("PENDING", "ONGOING"):
            return self._withdrawn()
        kind = f" ({told['type']})" if "type" in told else ""
        start = told.get("windowstarttime", "an unknown time")
        end = told.get("windowendtime", "an unknown time")
        text = (
            f"{self} says that maintenance of this host{kind} is {state}, window {start} to {end}"
        )
        if is_over(end, self._unix_time()):
            return Announcement(f"{text}: long over, so nothing is done", doomed=False)
        return Announcement(text, doomed=state == "ONGOING")

    def _withdrawn(self) -> Announcement | None:
        """What is told where an earlier announcement does not stand any more."""
        if self._told is None:
            return None
        return Announcement(f"{self} announces no maintenance of this host any more", doomed=False)


def is_over(end: str, now: float) -> bool:
    """Whether the time `end` was so long before the Unix time `now` that no clock explains it."""
    try:
        parsed = datetime.fromisoformat(end)
        aware = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
        return now - aware.timestamp() > _LONG_OVER
    except (ValueError, OverflowError):
        return False


def _maintenance(value: str) -> dict[str, str]:
    """The fields, whose names are written in two ways: window_start_time, windowStartTime.

    Raises:
        OSError: it is no such answer.
    """
    try:
        found = parse_object(value.encode(), "upcoming-maintenance")
    except UnreadableError as error:
        raise OSError(str(error)) from error
    inner = [one for one in found.values() if isinstance(one, dict)]
    fields = inner[0] if len(inner) == 1 == len(found) else found  # "Upcoming maintenance": {...}
    return {
        str(name).replace("_", "").lower(): text
        for name, text in fields.items()
        if isinstance(text, str)
    }
