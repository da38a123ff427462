"""Asks the metadata server of Google Compute Engine if this machine will be preempted or stopped.

The server knows of a preemption earlier than the operating system, and answers a waiting request as
soon as a value changes. We do not trust the answers: the server may be broken, or another program
may answer at its address.
"""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote

from supervisor.host import bounded_http
from supervisor.ports import Announcement, AnnouncementSource
from supervisor.protocol.reading import UnreadableError, parse_object

HOST = "169.254.169.254"
"""The address of metadata.google.internal: it works even if name servers fail."""
_LONG_POLL = 60
"""Seconds that the server may wait for a change before it answers."""
_PATIENCE = 15.0
"""Seconds after a long poll until we take the server for dead."""
_SHORT_PATIENCE = 3.0
"""Seconds that we wait for an answer while a drain waits for us."""
_NO_ETAG = "NONE"
"""An ETag that no value has: the server answers a request with it at once."""
_PAUSE = 1.0
"""Seconds between two requests."""
_SELDOM = 30.0
"""Seconds between two requests if the server does not wait for a change."""
_NEWS_EVERY = 60.0
"""The least seconds between two announcements of one source that do not end the job."""
_LONG_OVER = 86400.0
"""Seconds that a maintenance may go on after its window, or that a clock may be wrong."""
_NOTHING_YET = "no notifications have been received yet"
"""The server's answer if it knows of no maintenance; some servers send it with status 503."""
_MAX_TEXT = 300
_MAX_VALUE = 4096


EVENTS = {
    "instance/preempted": {"TRUE": True},
    "instance/maintenance-event": {
        "TERMINATE_ON_HOST_MAINTENANCE": True,
        "MIGRATE_ON_HOST_MAINTENANCE": False,
    },
}
"""The keys whose value is one word, and the values that are announcements: True if the machine is
ended. A live migration only pauses the machine, and the job goes on."""
_UPCOMING = "instance/upcoming-maintenance"
_POLICY = "instance/scheduling/on-host-maintenance"
"""The key that says what maintenance of the host does to this machine: MIGRATE or TERMINATE."""
KEYS = (*EVENTS, _UPCOMING, _POLICY)
"""All keys that we ask the server for."""


def sources(host: str) -> list[AnnouncementSource]:
    """Returns the sources of all announcements of the server at `host`; each waits by itself."""
    return [*(GceEvent(host, key) for key in EVENTS), GceMaintenance(host)]


class GceEvent:
    """Announces the values of a key of `EVENTS`."""

    pause = _PAUSE
    quick = True

    def __init__(self, host: str, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = _Key(host, key)
        self._meaning = EVENTS[key]
        self._news = _News(clock)

    def __str__(self) -> str:
        return str(self._key)

    def look(self) -> Announcement | None:
        """See `AnnouncementSource`.

        Answers at once the first time, later when the value changes, or after `_LONG_POLL` seconds.
        """
        status, value = self._key.ask()
        if status != http.client.OK:
            raise OSError(f"status {status}")
        ends_machine = self._meaning.get(value)
        text = f"{self} says {self._key.name} is {value}"
        return self._news.filter(None if ends_machine is None else Announcement(text, ends_machine))


class GceMaintenance:
    """Announces maintenance of the host with its window, hours or days before.

    * PENDING: it is announced, and the job goes on.
    * ONGOING: it stops the machine, so it ends the job; unless the policy is MIGRATE, which is the
      default of standard machines. Machines with a TPU or a GPU, and preemptible ones, are always
      stopped (Compute Engine API, Scheduling.onHostMaintenance).
    * Its window has been over for long: it is announced, and the job goes on. Otherwise a server
      that never withdraws a maintenance would keep the job from running here. If the machine is
      stopped, the other keys announce that too.
    * No maintenance: servers answer NONE or {}, or a sentence, with status 200 or 503. Machines
      that get no such announcements do not have the key (404).

    Fields and answers: cloud.google.com/tpu/docs/view-maintenance-notifications,
    .../compute/docs/instances/monitor-plan-host-maintenance-event; GoogleCloudPlatform/sapagent,
    which takes the error for "none", too.
    """

    quick = True

    def __init__(
        self,
        host: str,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._key = _Key(host, _UPCOMING, "&alt=json")
        self._policy = _Key(host, _POLICY)
        self._news = _News(clock)
        self._unix_time = unix_time

    def __str__(self) -> str:
        return str(self._key)

    @property
    def pause(self) -> float:
        """See `AnnouncementSource`."""
        return _PAUSE if self._key.waits else _SELDOM

    def look(self) -> Announcement | None:
        """See `AnnouncementSource`.

        Answers at once the first time, later when the value changes, or after `_LONG_POLL` seconds.
        """
        return self._news.filter(self._announced(*self._key.ask()))

    def _announced(self, status: int, value: str) -> Announcement | None:
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
            return Announcement(f"{text}: long over, so nothing is done", ends_machine=False)
        if state == "PENDING":
            return Announcement(text, ends_machine=False)
        if self._migrates():
            text += ": the machine is migrated live, so the job goes on"
            return Announcement(text, ends_machine=False)
        return Announcement(text)

    def _migrates(self) -> bool:
        """True if the machine is migrated live. Without an answer we assume that it is stopped: an
        unnecessary save costs less than a stop without a save."""
        try:
            status, value = self._policy.now()
        except OSError:
            return False
        return status == http.client.OK and value == "MIGRATE"

    def _withdrawn(self) -> Announcement | None:
        """Announces that there is no maintenance any more; None if none was announced."""
        if self._news.last is None:
            return None
        text = f"{self} announces no maintenance of this host any more"
        return Announcement(text, ends_machine=False)


class _News:
    """Passes on only new announcements; those that do not end the job at most once every
    `_NEWS_EVERY` seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.last: Announcement | None = None
        """The announcement that was passed on last."""
        self._clock = clock
        self._next = -math.inf

    def filter(self, announcement: Announcement | None) -> Announcement | None:
        """Returns the announcement if it is to be passed on now, else None."""
        if announcement == self.last:  # the same value with another ETag
            return None
        if announcement is not None and not announcement.ends_machine:
            if self._clock() < self._next:
                return None  # a later look announces what is true then
            self._next = self._clock() + _NEWS_EVERY
        self.last = announcement
        return announcement


class _Key:
    """Asks for one key of the server. An answer is its status and its value. If the answer is not
    that of a metadata server, an OSError is raised."""

    def __init__(self, host: str, name: str, form: str = "") -> None:
        """`form` is added to the query of `ask`."""
        self.name = name
        self.waits = True
        """True if the server waits for a change: its last answer had a value and an ETag."""
        self._host = host
        self._form = form
        self._etag = _NO_ETAG

    def __str__(self) -> str:
        return f"the metadata server at {self._host}"

    def ask(self) -> tuple[int, str]:
        """Returns the answer: at once the first time, then when the value changes or the long poll
        ends."""
        seen = quote(self._etag, safe="")
        query = f"?wait_for_change=true&timeout_sec={_LONG_POLL}&last_etag={seen}{self._form}"
        answer, value = self._get(query, _LONG_POLL + _PATIENCE)
        is_value = answer.status == http.client.OK
        if is_value:
            self._etag = (answer.headers.get("ETag") or _NO_ETAG)[:_MAX_TEXT]
        self.waits = is_value and self._etag != _NO_ETAG
        return answer.status, value

    def now(self) -> tuple[int, str]:
        """Returns the answer at once, within `_SHORT_PATIENCE` seconds: a drain waits for it."""
        answer, value = self._get("", _SHORT_PATIENCE)
        return answer.status, value

    def _get(self, query: str, seconds: float) -> tuple[bounded_http.Answer, str]:
        # We do not use urllib: it may ask a proxy, and get the metadata of the proxy's machine.
        answer = bounded_http.get(
            self._host,
            f"/computeMetadata/v1/{self.name}{query}",
            {"Metadata-Flavor": "Google"},
            seconds=seconds,
            most=_MAX_VALUE,
        )
        if answer.headers.get("Metadata-Flavor") != "Google":
            raise OSError("the answer is not from a metadata server")
        return answer, answer.body.decode("utf-8", "replace").strip()


def is_over(end: str, now: float) -> bool:
    """True if the time `end` is more than `_LONG_OVER` seconds before the Unix time `now`; False if
    `end` is no time."""
    try:
        parsed = datetime.fromisoformat(end)
        aware = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
        return now - aware.timestamp() > _LONG_OVER
    except (ValueError, OverflowError):
        return False


def _maintenance(value: str) -> dict[str, str]:
    """Returns the fields of an answer, by names in small letters without underscores. Servers
    spell the names in two ways: window_start_time and windowStartTime.

    Raises:
        OSError: the answer is not a JSON object.
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
