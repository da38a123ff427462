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
_SHORT_PATIENCE = 3.0
"""What it gets for an answer that the drain waits for."""
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


EVENTS = {
    "instance/preempted": {"TRUE": True},
    "instance/maintenance-event": {
        "TERMINATE_ON_HOST_MAINTENANCE": True,
        "MIGRATE_ON_HOST_MAINTENANCE": False,
    },
}
"""The keys whose value is one word. For each value that is an announcement: whether it dooms the
machine. A live migration does not: it pauses the machine, and the job goes on."""
_UPCOMING = "instance/upcoming-maintenance"
_POLICY = "instance/scheduling/on-host-maintenance"
"""MIGRATE or TERMINATE: what maintenance of the host does to this machine."""
KEYS = (*EVENTS, _UPCOMING, _POLICY)
"""All that is asked of the server."""


def sources(host: str) -> list[Source]:
    """All that the server at `host` may announce, each waited for by itself."""
    return [*(GceEvent(host, key) for key in EVENTS), GceMaintenance(host)]


class GceEvent:
    """Announces what a key of `EVENTS` says."""

    pause = _PAUSE
    quick = True

    def __init__(self, host: str, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = _Key(host, key)
        self._meaning = EVENTS[key]
        self._news = _News(clock)

    def __str__(self) -> str:
        return str(self._key)

    def look(self) -> Announcement | None:
        """See `Source`: answers at once the first time, then when the value changes."""
        status, value = self._key.ask()
        if status != http.client.OK:
            raise OSError(f"status {status}")
        doomed = self._meaning.get(value)
        text = f"{self} says {self._key.name} is {value}"
        return self._news.of(None if doomed is None else Announcement(text, doomed))


class GceMaintenance:
    """Announces maintenance of the host, with its window, hours or days before.

    It is told while it is PENDING. Once it is ONGOING it stops the machine, unless the policy is
    MIGRATE: the default of standard machines; those with a TPU or a GPU, and preemptible ones, are
    always stopped (Compute Engine API, Scheduling.onHostMaintenance). One whose window is long over
    is told and does not end the job, which could never run here otherwise: what does stop the
    machine is announced by the other keys, too. Where none is known, servers answer NONE or {}, or
    say so with 200 or 503; machines that get no such notices lack the key (404). Fields and
    answers: cloud.google.com/tpu/docs/view-maintenance-notifications,
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
        """See `Source`."""
        return _PAUSE if self._key.waits else _SELDOM

    def look(self) -> Announcement | None:
        """See `Source`: answers at once the first time, then when the value changes."""
        return self._news.of(self._announced(*self._key.ask()))

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
            return Announcement(f"{text}: long over, so nothing is done", doomed=False)
        if state == "PENDING":
            return Announcement(text, doomed=False)
        if self._migrates():
            text += ": the machine is migrated live, so the job goes on"
            return Announcement(text, doomed=False)
        return Announcement(text)

    def _migrates(self) -> bool:
        """Whether the machine is migrated live. Without an answer we take it that it is stopped: a
        save costs less than a stop without one."""
        try:
            status, value = self._policy.now()
        except OSError:
            return False
        return status == http.client.OK and value == "MIGRATE"

    def _withdrawn(self) -> Announcement | None:
        """What is told where an earlier announcement does not stand any more."""
        if self._news.last is None:
            return None
        return Announcement(f"{self} announces no maintenance of this host any more", doomed=False)


class _News:
    """Passes on only what is new, and what does not end the job at most once in a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.last: Announcement | None = None
        """What was passed on last."""
        self._clock = clock
        self._next = -math.inf

    def of(self, announcement: Announcement | None) -> Announcement | None:
        """The announcement, if it is to be told now."""
        if announcement == self.last:  # another ETag of the same value
            return None
        if announcement is not None and not announcement.doomed:
            if self._clock() < self._next:
                return None  # a look after that tells what stands then
            self._next = self._clock() + _NEWS_EVERY
        self.last = announcement
        return announcement


class _Key:
    """One key of the server. An answer is its status and the value; both are of a metadata server,
    or the question raises OSError."""

    def __init__(self, host: str, name: str, form: str = "") -> None:
        """`form` is what else to ask for."""
        self.name = name
        self.waits = True
        """Whether the server waits for a change; not if its last answer had no value or no ETag."""
        self._host = host
        self._form = form
        self._etag = _NO_ETAG

    def __str__(self) -> str:
        return f"the metadata server at {self._host}"

    def ask(self) -> tuple[int, str]:
        """The answer, at once the first time, then when the value changes."""
        seen = quote(self._etag, safe="")
        query = f"?wait_for_change=true&timeout_sec={_LONG_POLL}&last_etag={seen}{self._form}"
        answer, value = self._get(query, _LONG_POLL + _PATIENCE)
        is_value = answer.status == http.client.OK
        if is_value:
            self._etag = (answer.headers.get("ETag") or _NO_ETAG)[:_MAX_TEXT]
        self.waits = is_value and self._etag != _NO_ETAG
        return answer.status, value

    def now(self) -> tuple[int, str]:
        """The answer at once: a drain waits for it."""
        answer, value = self._get("", _SHORT_PATIENCE)
        return answer.status, value

    def _get(self, query: str, seconds: float) -> tuple[bounded_http.Answer, str]:
        # No urllib: it would ask a proxy, whose metadata would be another machine's.
        answer = bounded_http.get(
            self._host,
            f"/computeMetadata/v1/{self.name}{query}",
            {"Metadata-Flavor": "Google"},
            seconds=seconds,
            most=_MAX_VALUE,
        )
        if answer.headers.get("Metadata-Flavor") != "Google":
            raise OSError("what answers is no metadata server")
        return answer, answer.body.decode("utf-8", "replace").strip()


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
