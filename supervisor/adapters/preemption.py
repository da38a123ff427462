"""Listens for the announcement that this machine will be taken away, to save before SIGTERM comes.

Google's metadata server knows of a preemption earlier than the operating system does, and answers
a request the moment it changes its mind; anything else that knows can write a file, or be asked by
a command. Each source has a thread of its own, because asking blocks; none of them can block, slow
down or end the job by being broken.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from supervisor.config.schema import Preemption
from supervisor.host.waiting import has_ended
from supervisor.ports import Starter
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import UnreadableError, opened, parse_object

_GCE_HOST = "169.254.169.254"
"""metadata.google.internal: by its address, because name servers have bad days too."""
_GCE_HOST_VARIABLE = "GCE_METADATA_HOST"
_GCE_PRODUCT = Path("/sys/class/dmi/id/product_name")
_LONG_POLL = 60
_PATIENCE = 15.0
"""What the server gets beyond a long poll before it is taken for dead."""
_NO_ETAG = "NONE"
"""That of no value: asked with it, the server answers at once."""
_PAUSE = 1.0
_SELDOM = 30.0
"""The pause where there is nothing to wait for."""
_NOTHING_YET = "no notifications have been received yet"
"""What the server says of maintenance where none is known; some do so with 503."""
_COMMAND_PAUSE = 5.0
_MAX_BACKOFF = 60.0
_MAX_DOUBLINGS = 16
_TELL_AFTER = 3
_MAX_TEXT = 300
_MAX_VALUE = 4096
_MAX_SHOWN = 400
_CHUNK = 1 << 16


class Source(Protocol):
    """Somebody who may know that the machine will be taken away."""

    pause: float
    """How long to leave it in peace between two looks."""
    quick: bool
    """Whether a first look takes no time, where all is well."""

    def look(self) -> Announcement | None:
        """What is announced, if anything is; may block.

        Raises:
            Exception: it could not be asked; `PreemptionWatch` tells why and asks again.
        """
        ...


@dataclass(frozen=True, slots=True)
class Announcement:
    """What was announced, and by whom."""

    text: str
    doomed: bool = True
    """Whether the job cannot stay on this machine."""


def shown(text: str, redact: Callable[[str], str]) -> str:
    """What a person is told of a source's text: without secrets, then cut, and printable."""
    return printable(redact(text)[:_MAX_SHOWN])


def _reason(error: Exception) -> str:
    """The message of an error that a source can expect; with its type, of any other error."""
    if isinstance(error, (OSError, http.client.HTTPException)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"


class PreemptionWatch:
    """Asks sources until one of them says that the machine is doomed."""

    def __init__(
        self,
        sources: Sequence[Source],
        doomed: Callable[[str], None],
        announced: Callable[[str], None],
        tell: Callable[[str], None],
        redact: Callable[[str], str],
    ) -> None:
        """`doomed` gets such an announcement, once for each source, `announced` any other, and
        `tell` what a person should know besides; all are called in a thread of the source. `redact`
        takes the secrets out of a text: before it is cut, because half a secret is not known as
        one."""
        self._doomed = doomed
        self._announce = announced
        self._tell = tell
        self._redact = redact
        self._announced: str | None = None
        self._closed = threading.Event()
        self._first_looks: list[threading.Event] = []
        for source in sources:
            looked = threading.Event()
            if source.quick:
                self._first_looks.append(looked)
            threading.Thread(target=self._watch, args=(source, looked), daemon=True).start()

    def standing(self, patience: float) -> str | None:
        """The announcement that stands already; waits `patience` for the quick sources' answers."""
        until = time.monotonic() + patience
        for looked in self._first_looks:
            looked.wait(max(0.0, until - time.monotonic()))
        return self._announced

    def close(self) -> None:
        """Ask nobody any more. A question under way gets its answer, and nobody hears it."""
        self._closed.set()

    def _watch(self, source: Source, looked: threading.Event) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                announcement = source.look()
            except Exception as error:
                announcement = None
                failures += 1
                pause = min(_MAX_BACKOFF, source.pause * 2 ** min(failures - 1, _MAX_DOUBLINGS))
                if failures == _TELL_AFTER:
                    why = shown(_reason(error), self._redact)
                    self._tell(f"{source} does not answer ({why}); it is asked again and again")
            else:
                failures = 0
                pause = source.pause
            if announcement is not None and not self._closed.is_set():
                text = shown(announcement.text, self._redact)
                if announcement.doomed:
                    self._announced = text
                    self._doomed(text)
                else:
                    self._announce(text)
            looked.set()
            if announcement is not None and announcement.doomed:
                return
            self._closed.wait(pause)


def sources(
    config: Preemption,
    environ: Mapping[str, str],
    starter: Starter,
    product: Path = _GCE_PRODUCT,
) -> list[Source]:
    """Whom `config` says to ask. `environ` is what a command gets, which `starter` starts, and may
    name another metadata server, as it does for Google's own libraries."""
    found: list[Source] = []
    if config.source == "gce" or (config.source == "auto" and _on_gce(environ, product)):
        host = environ.get(_GCE_HOST_VARIABLE) or _GCE_HOST
        found += [GceMetadata(host, key) for key in _GCE_MEANING]
        found.append(GceMaintenance(host))
    if config.file is not None:
        found.append(AnnouncementFile(Path(config.file).expanduser().absolute()))
    if config.command is not None:
        found.append(AnnouncementCommand(config.command, environ, starter))
    return found


def _on_gce(environ: Mapping[str, str], product: Path) -> bool:
    if environ.get(_GCE_HOST_VARIABLE):
        return True
    try:
        return product.read_text().startswith("Google")
    except OSError:
        return False


_GCE_MEANING = {
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

    def __init__(self, host: str, key: str) -> None:
        self._host = host
        self._key = key
        self._etag = _NO_ETAG
        self._told: Announcement | None = None

    def __str__(self) -> str:
        return f"the metadata server at {self._host}"

    def look(self) -> Announcement | None:
        """See `Source`: answers at once the first time, then when the value changes."""
        status, value = self._ask()
        announcement = self._announced(status, value)
        if announcement == self._told:  # another ETag of the same value
            return None
        self._told = announcement
        return announcement

    def _announced(self, status: int, value: str) -> Announcement | None:
        if status != http.client.OK:
            raise OSError(f"status {status}")
        doomed = _GCE_MEANING[self._key].get(value)
        if doomed is None:
            return None
        return Announcement(f"{self} says {self._key} is {value}", doomed)

    def _ask(self) -> tuple[int, str]:
        """The status, and the value; both are of a metadata server."""
        seen = quote(self._etag, safe="")
        query = f"wait_for_change=true&timeout_sec={_LONG_POLL}&last_etag={seen}{self.form}"
        # No urllib: it would ask a proxy, whose metadata would be another machine's.
        connection = http.client.HTTPConnection(self._host, timeout=_LONG_POLL + _PATIENCE)
        try:
            connection.request(
                "GET",
                f"/computeMetadata/v1/{self._key}?{query}",
                headers={"Metadata-Flavor": "Google"},
            )
            response = connection.getresponse()
            value = response.read(_MAX_VALUE).decode("utf-8", "replace").strip()
        finally:
            connection.close()
        if response.getheader("Metadata-Flavor") != "Google":
            raise OSError("what answers is no metadata server")
        if response.status == http.client.OK:
            self._etag = (response.getheader("ETag") or _NO_ETAG)[:_MAX_TEXT]
        return response.status, value


class GceMaintenance(GceMetadata):
    """Maintenance of the host, announced with its window hours or days before.

    It is told while it is PENDING; once it is ONGOING the machine is about to stop, as a TPU is not
    migrated live. Where none is known, servers answer NONE or {}, or say so with 200 or 503;
    machines that get no such notices lack the key (404). Fields and answers: cloud.google.com/tpu/
    docs/view-maintenance-notifications, .../compute/docs/instances/monitor-plan-host-maintenance-
    event; GoogleCloudPlatform/sapagent, which takes the error for "none", too.
    """

    form = "&alt=json"

    def __init__(self, host: str) -> None:
        super().__init__(host, "instance/upcoming-maintenance")

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
        return Announcement(text, doomed=state == "ONGOING")

    def _withdrawn(self) -> Announcement | None:
        """What is told where an earlier announcement does not stand any more."""
        if self._told is None:
            return None
        return Announcement(f"{self} announces no maintenance of this host any more", doomed=False)


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


class AnnouncementFile:
    """A file that announces a preemption by being there; its first line says why."""

    pause = _PAUSE
    quick = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return f"the file {self._path}"

    def look(self) -> Announcement | None:
        """See `Source`."""
        try:
            with opened(self._path, linked=True) as file:
                text = file.read(_CHUNK)
        except FileNotFoundError:
            return None
        return Announcement(f"{self} is there{_quoted(text)}")


class AnnouncementCommand:
    """A command that announces a preemption by ending with exit code 0 and a line that says why.

    It may take as long as it likes, and is run again after any other end. It is killed with each
    attempt, as all processes of the job are that are not of the next one.
    """

    pause = _COMMAND_PAUSE
    quick = False

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], starter: Starter) -> None:
        self._starter = starter
        self._argv = list(argv)
        self._environ = dict(environ)

    def __str__(self) -> str:
        return f"the command {self._argv[0]!r}"

    def look(self) -> Announcement | None:
        """See `Source`."""
        reads, writes = os.pipe()
        with os.fdopen(reads, "rb") as output:
            with os.fdopen(writes, "wb") as theirs, Path(os.devnull).open("wb") as null:
                command = self._starter.start(
                    self._argv, self._environ, theirs.fileno(), null.fileno()
                )
            try:
                said = output.read(_CHUNK)
                while output.read(_CHUNK):
                    pass
                has_ended(command.pidfd, None)
                while (code := self._starter.exit_code(command)) is None:
                    pass  # it has waited for the guard to tell
            finally:
                os.close(command.pidfd)
        return Announcement(f"{self} says{_quoted(said)}") if code == 0 and said.strip() else None


def _quoted(text: bytes) -> str:
    line = text.decode("utf-8", "replace").partition("\n")[0].strip()
    return f": {line}" if line else ""
