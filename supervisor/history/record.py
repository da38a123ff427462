"""The records of the journal, one JSON line each, and their texts.

A `Turn` is an event, the decisions that it led to, and the changes of the durable state. A
`ConfigRecord` keeps the resolved config. A `Snapshot` has all that is still needed of the records
before it, which are in an archived segment. Each line has the record's number and the version that
wrote it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR, datetime
from typing import Any

from supervisor.core.decisions import Decision
from supervisor.core.events import Event
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.history.encoding import EncodingError, decode, encode
from supervisor.history.past import Past
from supervisor.history.upcasters import FORMAT, UPCASTERS, upcast
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import UnreadableError, parse_object

_REMEDY = (
    "bring back an undamaged copy, go on from its usable part with `supervise repair MODEL_DIR`, "
    "or move it away to begin a new journal (with the folder journal/, if there is one)"
)
GONE = (
    "bring back an undamaged copy, go on from those with `supervise repair MODEL_DIR`, or move "
    "journal/ away too to begin a new journal"
)
"""The remedy if only the journal's segments are left."""
UNREADABLE = (
    "move it away to begin a new journal; if journal/ holds older records, then go on from them "
    "with `supervise repair MODEL_DIR`"
)
"""The remedy if the file in the journal's place is not a journal."""
_FORM = "does not have the form that supervise writes"
_MAX_SHOWN = 80


class JournalError(Exception):
    """The journal cannot be read or written, so nothing may be started."""


class DamagedJournalError(JournalError):
    """The journal is damaged or gone: only a person can repair it."""

    def __init__(self, why: str, remedy: str = _REMEDY) -> None:
        """`why` names the file and the damage; `remedy` says what to do."""
        super().__init__(f"{why}; {remedy}")
        self.why = why

    def message_for(self, place: object) -> str:
        """Returns the message for a person, with `place`, the job's model_dir, in it."""
        return f"{place}: {self}".replace("MODEL_DIR", shlex.quote(str(place)))


class NewerJournalError(DamagedJournalError):
    """A newer version wrote the journal: it is not damaged, but this version cannot read it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the core: an event, and what followed from it."""

    number: int
    by: str
    wall: datetime
    event: Event
    decisions: tuple[Decision, ...]
    changes: dict[str, Any] | None
    """The changed fields of the durable state, as JSON; None: the format did not record them."""


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """The resolved config of each phase."""

    number: int
    config: list[dict[str, Any]]
    diff: tuple[str, ...] = ()
    """Its changes since the config before, for people."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the job, and all that is still needed of the records before it."""

    number: int
    wall: datetime
    state: JobState
    past: Past
    policy: RestartPolicy | None = None
    config: list[dict[str, Any]] | None = None
    archived: str | None = None
    """The file, relative to model_dir, of the records before this one; None: there are none."""
    views: Mapping[str, Any] = field(default_factory=dict)
    """What observers computed from those records, by name, as JSON."""
    repaired: str = ""
    """What `supervise repair` did; "": it did not write this snapshot."""


Record = Turn | ConfigRecord | Snapshot


def line_of_turn(turn: Turn) -> bytes:
    """Returns the journal line of a turn."""
    return _line(
        turn.number,
        turn.by,
        turn.wall,
        event=encode(turn.event, Event),
        decisions=[encode(decision, Decision) for decision in turn.decisions],
        state=turn.changes,
    )


def line_of_config(
    number: int, by: str, wall: datetime, config: list[dict[str, Any]], diff: list[str]
) -> bytes:
    """Returns the journal line of a config, with its changes since the last one, for people."""
    return _line(number, by, wall, config=config, diff=diff)


def line_of_snapshot(snapshot: Snapshot, by: str) -> bytes:
    """Returns the journal line of a snapshot."""
    body = {
        "state": encode(snapshot.state, JobState),
        "past": encode(snapshot.past, Past),
        "policy": encode(snapshot.policy, RestartPolicy | None),
        "config": snapshot.config,
        "archived": snapshot.archived,
        "views": dict(snapshot.views),
    }
    if snapshot.repaired:
        body["repaired"] = snapshot.repaired
    return _line(snapshot.number, by, snapshot.wall, snapshot=body)


def _line(number: int, by: str, wall: datetime, **body: Any) -> bytes:
    told = {"v": FORMAT, "by": by, "n": number, "time": wall.isoformat(), **body}
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def parse(line: bytes, where: str, number: int) -> tuple[Record, int]:
    """Returns the record in `line`, and the format that it was written in.

    `number` is the record's number, for formats that do not have one in the line. `where` names the
    file and the line in errors.

    Raises:
        DamagedJournalError: the line is not a record.
    """
    try:
        body = parse_object(line, where)
        written = body["v"]
        if type(written) is not int or written not in (FORMAT, *UPCASTERS):
            raise _unknown_format(where, written, body.get("by"))
        return _record(upcast(body), number), written
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise DamagedJournalError(f"{where} is damaged: {what_is_wrong(error)}") from error


def are_newer(lines: bytes) -> bool:
    """True if a newer version has written the `lines`: the last line that can be read says so.

    If lines of our version follow a line that says so, that line is damaged.
    """
    for line in reversed(lines.split(b"\n")):
        with suppress(UnreadableError):
            written = parse_object(line, "").get("v")
            return type(written) is int and written > FORMAT
    return False


def _unknown_format(where: str, written: Any, by: Any) -> DamagedJournalError:
    found = printable(str(written)[:20])
    if type(written) is not int or written <= FORMAT:
        return DamagedJournalError(f"{where} has the unknown format {found}")
    who = f" ({printable(by[:_MAX_SHOWN])})" if isinstance(by, str) else ""
    why = f"{where} has format {found}, which a newer version of supervise has written{who}"
    return NewerJournalError(
        f"{why}; this one knows formats up to {FORMAT}", "run that version, or a later one"
    )


def _record(body: dict[str, Any], number: int) -> Record:
    number = body.get("n", number)
    if type(number) is not int:
        raise EncodingError("is no whole number", "n")
    if "config" in body:
        return ConfigRecord(
            number, config_of(body["config"]), decode(body.get("diff", []), tuple[str, ...])
        )
    wall = _time(body["time"])
    if "snapshot" in body:
        return _snapshot(number, wall, body["snapshot"])
    by, changes = body["by"], body.get("state")
    if not isinstance(by, str) or not isinstance(changes, dict | None):
        raise EncodingError(_FORM, "state" if isinstance(by, str) else "by")
    return Turn(
        number,
        by,
        wall,
        decode(body["event"], Event),
        decode(body["decisions"], tuple[Decision, ...]),
        changes,
    )


def _time(told: str) -> datetime:
    """Returns a time that can be compared with others, and told in any time zone."""
    wall = datetime.fromisoformat(told)
    if wall.tzinfo is None or not MINYEAR < wall.year < MAXYEAR:
        raise EncodingError("is no time of a clock", "time")
    return wall


def _snapshot(number: int, wall: datetime, body: Any) -> Snapshot:
    archived, views = body["archived"], body["views"]
    repaired = body.get("repaired", "")
    if not isinstance(archived, str | None) or not isinstance(views, dict):
        raise EncodingError(_FORM, "snapshot")
    return Snapshot(
        number,
        wall,
        decode(body["state"], JobState),
        decode(body["past"], Past),
        decode(body["policy"], RestartPolicy | None),
        config_of(body["config"]) if body["config"] is not None else None,
        archived,
        views,
        repaired if isinstance(repaired, str) else "",
    )


def config_of(told: Any) -> list[dict[str, Any]]:
    """Returns `told` as the resolved config of each phase.

    Raises:
        TypeError: it is not a list of objects.
    """
    if not isinstance(told, list) or not all(isinstance(phase, dict) for phase in told):
        raise TypeError("not a list of phases")
    return told


def what_is_wrong(error: Exception) -> str:
    """Returns a sentence that says why a line is not a record of ours."""
    match error:
        case UnreadableError():
            return f"it {error.why}"
        case KeyError():
            return f"{printable(repr(error.args[0])[:_MAX_SHOWN])} is missing in it"
        case EncodingError():
            return printable(str(error))
        case _:
            return f"it {_FORM}"
