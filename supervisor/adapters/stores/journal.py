"""The journal: every event that changed the job, with the decisions it led to, one JSON line each.

It is the truth: the state of a job is what folding `machine.step` over its events gives. A last
line without its end is what a crash in the middle of a write leaves; it is cut off and told. A
record is written whole or not at all, and only behind the one before it: where the file is not what
this supervisor left (removed, cut, written to by another), it stops rather than write what cannot
be replayed.

Lines of kind `config` keep the resolved config, so that a changed one can be told as a diff.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from supervisor.core.decisions import Decision
from supervisor.core.events import Event, PhaseBegun, SupervisorStarted
from supervisor.core.machine import step
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.ports import Storage, Transition
from supervisor.protocol.attempts import is_phase_folder
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import UnreadableError, parse_object
from supervisor.protocol.segments import JOURNAL

FORMAT = 1
_MAX_JOURNAL = 256 << 20
"""Bytes; ten thousand attempts write a tenth of it."""
_MAX_NAME = 80
_REMEDY = "move it away to begin a new record, or bring back a copy that is whole"

_EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
_DECISIONS: dict[str, type] = {kind.__name__: kind for kind in get_args(Decision)}
_adapter: Callable[[type], TypeAdapter[Any]] = cache(TypeAdapter)
"""One for each kind that occurs: all of them cost each command a seventh of its start."""


class JournalError(Exception):
    """The journal cannot be read or written: without it nothing may be started."""


class DamagedJournalError(JournalError):
    """What is in the journal's place is none, which only a person can mend."""


@dataclass(slots=True)
class History:
    """What a journal tells: the state it leads to, and how it got there."""

    state: JobState = field(default_factory=JobState)
    config: list[dict[str, Any]] | None = None
    """The resolved config of each phase, as last recorded."""
    transitions: list[Transition] = field(default_factory=list)
    policy: RestartPolicy | None = None
    """In force since the last supervisor started; None: there was none."""
    torn: int = 0
    """Bytes of an incomplete last line."""


class FileJournal:
    """The journal of a model_dir."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._size: int | None = None
        """Where the journal ends, once it was read."""

    def append(self, transition: Transition, *, durable: bool) -> None:
        """See `ports.Journal`.

        Raises:
            JournalError: it could not be written.
        """
        self._write(
            {
                "time": transition.wall.isoformat(),
                "event": _encode(transition.event),
                "decisions": [_encode(decision) for decision in transition.decisions],
            },
            durable=durable,
        )

    def record_config(self, wall: datetime, config: list[dict[str, Any]], diff: list[str]) -> None:
        """Keep the resolved config of every phase, and how it differs from the one before."""
        self._write({"time": wall.isoformat(), "config": config, "diff": diff}, durable=True)

    def _write(self, body: dict[str, Any], *, durable: bool) -> None:
        line = json.dumps({"v": FORMAT, **body}, separators=(",", ":")).encode() + b"\n"
        try:
            self._storage.append(JOURNAL, line, at=self._size, durable=durable)
        except OSError as error:
            raise JournalError(f"{JOURNAL} cannot be written: {error.strerror}") from error
        if self._size is not None:
            self._size += len(line)

    def _cut(self, whole: bytes) -> None:
        try:
            self._storage.replace(JOURNAL, whole)
        except OSError as error:
            raise JournalError(f"{JOURNAL} cannot be mended: {error.strerror}") from error

    def read(self) -> History:
        """The job's history; a torn last line is cut off the file.

        Raises:
            JournalError: it cannot be read, or a line before the last is damaged.
        """
        history, whole, rest = self._look()
        if rest:
            self._cut(whole)
        self._size = len(whole)
        return history

    def look(self) -> History:
        """The same for who only looks on: nothing is mended, the last line may be half written.

        Raises:
            JournalError: see `read`.
        """
        return self._look()[0]

    def _look(self) -> tuple[History, bytes, bytes]:
        """The history, the whole lines that tell it, and what follows on them."""
        try:
            data = self._storage.read(JOURNAL, _MAX_JOURNAL)
        except FileNotFoundError:
            return History(), b"", b""
        except UnreadableError as error:
            raise DamagedJournalError(f"{JOURNAL} {error.why}: {_REMEDY}") from error
        except OSError as error:
            raise JournalError(f"{JOURNAL} cannot be read: {error.strerror}") from error
        end = data.rfind(b"\n") + 1
        history = History(torn=len(data) - end)
        for number, line in enumerate(data[:end].splitlines(), start=1):
            _replay(history, number, line)
        return history, data[:end], data[end:]


def phases_on_record(storage: Storage) -> Sequence[str]:
    """The folders of the phases that the journal has, oldest first; none where it cannot be read,
    which whoever reads it next is told."""
    try:
        transitions = FileJournal(storage).look().transitions
    except JournalError:
        return ()
    folders = (transition.after.directory for transition in transitions)
    return tuple(dict.fromkeys(folder for folder in folders if folder is not None))


def _replay(history: History, number: int, line: bytes) -> None:
    """Fold one line into `history`."""
    where = f"{JOURNAL} line {number}"
    try:
        body = parse_object(line, where)
        if body["v"] != FORMAT:
            found = printable(str(body["v"])[:20])
            raise DamagedJournalError(f"{where} has format {found}, not {FORMAT}: {_REMEDY}")
        if "config" in body:
            history.config = _config(body["config"])
            return
        event: Event = _decode(_EVENTS, body["event"])
        wall = datetime.fromisoformat(body["time"])
        decisions: tuple[Decision, ...] = tuple(
            _decode(_DECISIONS, item) for item in body["decisions"]
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        why = f"{where} is damaged: {_what_is_wrong(error)}; {_REMEDY}"
        raise DamagedJournalError(why) from error
    if isinstance(event, PhaseBegun) and not is_phase_folder(event.directory):
        found = printable(repr(event.directory[:_MAX_NAME]))
        why = f"{where} says that a phase has the folder {found}, which no phase can have"
        raise DamagedJournalError(f"{why}: {_REMEDY}")
    if isinstance(event, SupervisorStarted):
        history.policy = event.policy
    if history.policy is None:
        raise DamagedJournalError(f"{where} comes before any SupervisorStarted: {_REMEDY}")
    before = history.state
    try:
        history.state, _ = step(before, event, history.policy)
    except Exception as error:  # a line that nobody of us wrote: no state that we know leads there
        why = f"{where} does not follow from those before it; {_REMEDY}"
        raise DamagedJournalError(why) from error
    history.transitions.append(Transition(event, before, history.state, decisions, wall))


def _what_is_wrong(error: Exception) -> str:
    match error:
        case UnreadableError():
            return f"it {error.why}"
        case KeyError():
            return f"{printable(repr(error.args[0])[:_MAX_NAME])} is missing in it, or unknown"
        case ValidationError():
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "its event"
            return f"{printable(place[:_MAX_NAME])} is not as we write it ({first['msg']})"
        case _:
            return "it is not as we write it"


def _config(told: Any) -> list[dict[str, Any]]:
    if not isinstance(told, list) or not all(isinstance(phase, dict) for phase in told):
        raise TypeError("not a list of phases")
    return told


def _encode(value: Event | Decision) -> dict[str, Any]:
    kind = type(value)
    return {"kind": kind.__name__, **_adapter(kind).dump_python(value, mode="json")}


def _decode(kinds: dict[str, type], body: dict[str, Any]) -> Any:
    fields = dict(body)
    return _adapter(kinds[fields.pop("kind")]).validate_python(fields)
