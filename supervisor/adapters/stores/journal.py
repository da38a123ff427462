"""Reads and writes the journal's file, `journal.jsonl`, and the segments of its older records.

The journal is the truth about a job. A long journal is compacted: its records move to a segment,
and `journal.jsonl` begins anew with a snapshot. So it opens fast, however old the job is. Segments
are in `journal/` and are never written again. Each begins with the snapshot that names the segment
before it (the first one has none). Nothing is deleted.

A crash in the middle of a write leaves a part of a line after whole lines. `read` cuts it off and
keeps it in a file of its own; the supervisor reports it. Anything else that cannot be replayed is
damage. A journal that is gone although its segments are there is damage too: the job does not begin
anew. See `supervisor.repair`.

A record is written whole or not at all, and only after the record before it. If the file is not
what this supervisor left (it was removed, cut or written by another process), the supervisor stops:
it writes nothing that could not be replayed. Compacting writes the segment first and replaces the
journal then. A supervisor that is killed in between leaves a segment that no snapshot names; the
next one compacts again.

`supervisor.history` says what the records contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from supervisor.core.recovery import Recovery
from supervisor.core.state import JobState
from supervisor.files.attempts import is_phase_folder
from supervisor.files.segments import ARCHIVE, JOURNAL, TORN
from supervisor.history.archive import archived_name as archived_name
from supervisor.history.archive import check_unchanged, checksum, is_segment
from supervisor.history.encoding import encode
from supervisor.history.fold import History as History
from supervisor.history.record import (
    GONE,
    UNREADABLE,
    Snapshot,
    Turn,
    are_newer,
    line_of_config,
    line_of_snapshot,
    line_of_turn,
    parse,
)
from supervisor.history.record import DamagedJournalError as DamagedJournalError
from supervisor.history.record import JournalError as JournalError
from supervisor.history.record import NewerJournalError as NewerJournalError
from supervisor.history.writer import writer
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Storage, Transition
from supervisor.protocol.reading import UnreadableError, parse_object

_MAX_JOURNAL = 256 << 20
"""Bytes; ten times what ten thousand attempts write, if the journal is never compacted."""
COMPACT_AFTER = 1000
"""Records in a segment: 0.4 MB, read in a twentieth of a second."""
_VIEW = Callable[[], Any]


class FileJournal:
    """The journal of a model_dir."""

    def __init__(
        self,
        storage: Storage,
        *,
        compact_after: int = COMPACT_AFTER,
        tell: Tell = lambda told: None,
    ) -> None:
        """`tell` gets a notice if compacting fails; it is tried again later."""
        self._storage = storage
        self._compact_after = compact_after
        self._tell = tell
        self._views: dict[str, _VIEW] = {}
        self._size = 0
        """The length of the journal in bytes."""
        self._records = 0
        """The number of records since the journal was compacted, or since we last tried that."""
        self._now: History | None = None
        """The history up to now, without its transitions; None: the journal was not read yet."""
        self._state: dict[str, Any] | None = None
        """The last recorded durable state as JSON; None: the next record must contain all of it."""

    def add_view(self, name: str, view: _VIEW) -> None:
        """Put the JSON that `view` returns into every snapshot, under `name`, unless it is None."""
        self._views[name] = view

    # --- writing ----------------------------------------------------------------------------------

    def append(self, transition: Transition, *, durable: bool) -> None:
        """See `ports.Journal`.

        Raises:
            JournalError: the record could not be written.
        """
        now = self._loaded_history()
        if now.number and (now.is_outdated or self._records >= self._compact_after):
            self._compact(now, transition.wall)
        state = encode(transition.after.durable(), JobState)
        known = self._state or {}
        turn = Turn(
            now.number + 1,
            writer(),
            transition.wall,
            transition.event,
            transition.decisions,
            {name: value for name, value in state.items() if known.get(name, ...) != value},
        )
        self._write(line_of_turn(turn), durable=durable)
        now.apply_transition(transition)
        self._state = state

    def record_config(self, wall: datetime, config: list[dict[str, Any]], diff: list[str]) -> None:
        """Append a record of the resolved config of every phase, and of its changes, `diff`."""
        now = self._loaded_history()
        line = line_of_config(now.number + 1, writer(), wall, config, diff)
        self._write(line, durable=True)
        now.apply_config(config, diff)

    def _loaded_history(self) -> History:
        if self._now is None:
            self.read()
        assert self._now is not None
        return self._now

    def _write(self, line: bytes, *, durable: bool) -> None:
        try:
            if self._size == 0 and not content(self._storage, JOURNAL):
                self._storage.replace(JOURNAL, line)  # no crash leaves a part of it
            else:
                self._storage.append(JOURNAL, line, at=self._size, durable=durable)
        except OSError as error:
            raise JournalError(f"{JOURNAL} cannot be written: {error.strerror}") from error
        self._size += len(line)
        self._records += 1

    def _compact(self, now: History, wall: datetime) -> None:
        """Move all records to a segment. If that fails, the journal stays long, and no more."""
        self._records = 0
        try:
            data = self._storage.read(JOURNAL, _MAX_JOURNAL)
            if len(data) != self._size:
                return  # the next append fails, with the reason
            archived = archived_name(now, data)
            self._storage.make_directory(ARCHIVE, durable=True)
            self._storage.replace(archived, data)
            snapshot = self._snapshot(now, wall, archived)
            line = line_of_snapshot(snapshot, writer())
            self._storage.replace(JOURNAL, line)
        except OSError as error:
            text = f"{JOURNAL} cannot be compacted, which is tried again: {error.strerror}"
            self._tell(Notice("journal-not-compacted", text, reason=error.strerror))
            return
        self._size, self._state = len(line), encode(snapshot.state, JobState)
        now.number, now.snapshot, now.is_outdated = snapshot.number, snapshot, False

    def _snapshot(self, now: History, wall: datetime, archived: str) -> Snapshot:
        views = {name: view() for name, view in self._views.items()}
        return Snapshot(
            now.number + 1,
            wall,
            now.state.durable(),
            now.past,
            now.policy,
            now.config,
            archived,
            {name: view for name, view in views.items() if view is not None},
        )

    # --- reading ----------------------------------------------------------------------------------

    def read(self) -> History:
        """Returns the job's history. Moves an incomplete last line to a file of its own.

        Raises:
            JournalError: the journal cannot be read, or is damaged in another way.
        """
        history, data = self._replay_file()
        whole = data[: len(data) - history.torn_bytes]
        if not whole.endswith(b"\n") and whole:
            whole += b"\n"
        if whole != data:
            self._mend(history, whole, data[len(data) - history.torn_bytes :])
        self._size, self._records = len(whole), len(history.transitions)
        self._now = History(
            history.state,
            history.config,
            [],
            history.policy,
            past=history.past,
            number=history.number,
            snapshot=history.snapshot,
            is_outdated=history.is_outdated,
        )
        is_known = history.number and not history.is_outdated
        self._state = encode(history.state.durable(), JobState) if is_known else None
        return history

    def peek(self) -> History:
        """Returns the job's history and changes nothing: another process may be writing the file.

        Raises:
            JournalError: see `read`.
        """
        return self._replay_file()[0]

    def all_transitions(self, history: History) -> Iterator[Transition]:
        """Yields all transitions that led to `history`, which `read` returned: archived ones first.

        Raises:
            JournalError: a segment is missing, or cannot be read.
        """
        segments: list[str] = []
        archived = history.snapshot.archived if history.snapshot is not None else None
        while archived is not None:
            segments.append(archived)
            archived = self._named_by(archived)
        for name in reversed(segments):
            yield from replay(self._segment(name), name, checked=False).transitions
        yield from history.transitions

    def _named_by(self, name: str) -> str | None:
        """Returns the name of the segment before the segment `name`; None: it is the first."""
        first, _, _ = self._segment(name).partition(b"\n")
        record, _ = parse(first, f"{name} line 1", 1)
        before = record.archived if isinstance(record, Snapshot) else None
        if before is not None and before >= name:
            raise DamagedJournalError(f"{name} names {before} as the segment before it")
        return before

    def _segment(self, name: str) -> bytes:
        data = content(self._storage, name)
        if data is None:
            raise JournalError(f"{name} is missing: its records cannot be read")
        check_unchanged(name, data)
        return data

    def _replay_file(self) -> tuple[History, bytes]:
        """Returns the history and the content of the file, whose last `torn` bytes are left out."""
        data = content(self._storage, JOURNAL)
        if not data:
            self._check_no_past(data)
            return History(), b""
        end = data.rfind(b"\n") + 1
        is_torn = 0 < end < len(data) and not _is_whole(data[end:])
        history = replay(data[:end] if is_torn else data, JOURNAL)
        history.torn_bytes = len(data) - end if is_torn else 0
        if history.past.reached is not None:
            recovery = Recovery(reached=history.past.reached)
            history.state = replace(history.state, recovery=recovery)
        return history, data

    def _check_no_past(self, data: bytes | None) -> None:
        """Check that a job whose journal has no records has no past.

        `data` is the file's content: empty, which no crash leaves, or None if the file is missing.
        To begin a new journal, a person moves the journal away with its segments; the folders of
        old phases may stay.

        Raises:
            DamagedJournalError: there are segments; or the journal is empty, and a phase has begun.
        """
        what = "is missing" if data is None else "is empty"
        if segments := segments_of(self._storage):
            older = f"{len(segments)} segment{'s' * (len(segments) > 1)} of its older records"
            raise DamagedJournalError(f"{JOURNAL} {what}, but {ARCHIVE}/ has {older}", GONE)
        if data is not None and (phases := list(filter(is_phase_folder, _names(self._storage)))):
            raise DamagedJournalError(
                f"{JOURNAL} {what}, but the job has run: there is {phases[0]}"
            )

    def _mend(self, history: History, whole: bytes, torn: bytes) -> None:
        """Replace the file by its `whole` lines; keep the `torn` bytes in a file of their own."""
        try:
            if torn:
                history.torn_file = f"{TORN}{history.number + 1}-{checksum(torn)}.jsonl"
                self._storage.replace(history.torn_file, torn)
            self._storage.replace(JOURNAL, whole)
        except OSError as error:
            text = f"the last line of {JOURNAL} is incomplete, and cannot be repaired"
            raise JournalError(f"{text}: {error.strerror}") from error


def content(storage: Storage, name: str) -> bytes | None:
    """Returns the content of the journal or of a segment; None: there is no such file.

    Raises:
        DamagedJournalError: it is too large, or no regular file.
        JournalError: it cannot be read now.
    """
    try:
        return storage.read(name, _MAX_JOURNAL)
    except FileNotFoundError:
        return None
    except UnreadableError as error:
        raise DamagedJournalError(f"{name} {error.why}", UNREADABLE) from error
    except OSError as error:
        raise JournalError(f"{name} cannot be read: {error.strerror}") from error


def segments_of(storage: Storage) -> list[str]:
    """Returns the names of the archived segments, oldest first.

    Raises:
        JournalError: the folder cannot be read.
    """
    return [f"{ARCHIVE}/{name}" for name in sorted(_names(storage, ARCHIVE)) if is_segment(name)]


def _names(storage: Storage, folder: str = "") -> list[str]:
    try:
        return storage.names(folder)
    except OSError as error:
        raise JournalError(f"{folder or 'model_dir'} cannot be read: {error.strerror}") from error


def _is_whole(line: bytes) -> bool:
    """True if a last line lacks only its line end. A part of a record is never a JSON object."""
    try:
        parse_object(line, JOURNAL)
    except UnreadableError:
        return False
    return True


def phases_on_record(storage: Storage) -> Sequence[str]:
    """Returns the folders of the phases in the journal, oldest first. Returns none if the journal
    cannot be read: the next `read` raises that error."""
    try:
        return FileJournal(storage).peek().past.directories
    except JournalError:
        return ()


def replay(lines: bytes, name: str, *, checked: bool = True) -> History:
    """Returns the history that the whole `lines` of the file `name` lead to.

    `checked`: also check that each record follows from those before it.

    Raises:
        NewerJournalError: a newer version wrote these lines.
        DamagedJournalError: a line is damaged, or fails that check.
    """
    history = History()
    for place, line in enumerate(lines.removesuffix(b"\n").split(b"\n") if lines else (), start=1):
        where = f"{name} line {place}"
        try:
            record, written = parse(line, where, history.number + 1)
        except NewerJournalError as error:
            if are_newer(lines):
                raise
            raise DamagedJournalError(error.why) from error
        history.apply_record(record, written, where, checked=checked)
    if checked:
        history.check_final_state(name)
    return history
