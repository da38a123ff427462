"""The journal's file: the truth about a job, and the segments that its older records move to.

`journal.jsonl` begins with a snapshot where it has grown long before, so that it opens in a moment
after any time. What was before is in `journal/`, in segments that are never written again; each
begins with the snapshot that names the one before it. Nothing is deleted.

A part of a line behind whole ones is what a crash in the middle of a write leaves: it is cut off,
kept in a file of its own, and told. Anything else that cannot be followed is damage, and so is a
journal that is gone while its segments are there: nothing is begun anew then. See `repair`.
A record is written whole or not at all, and only behind the one before it: where the file is not
what this supervisor left (removed, cut, written to by another), it stops rather than write what
cannot be replayed. To compact, the segment is written first and the journal replaced then: whoever
is killed in between leaves a segment that nobody names, and does it again.

What the records say: see `supervisor.history`.
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
"""Bytes; one that was never compacted has a tenth of it after ten thousand attempts."""
COMPACT_AFTER = 1000
"""Records that make a segment: 0.4 MB, and a twentieth of a second to read."""
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
        """`tell` is told where it cannot be compacted, which is tried again."""
        self._storage = storage
        self._compact_after = compact_after
        self._tell = tell
        self._views: dict[str, _VIEW] = {}
        self._size = 0
        """Where the journal ends."""
        self._records = 0
        """How many are in it since it was compacted, or since that was last tried."""
        self._now: History | None = None
        """Where the journal stands, without its transitions; None: it was not read."""
        self._state: dict[str, Any] | None = None
        """The durable state as JSON; None: the next record tells all of it."""

    def keep(self, name: str, view: _VIEW) -> None:
        """Have what `view` returns, JSON, in every snapshot, under `name`; None: nothing."""
        self._views[name] = view

    # --- writing ----------------------------------------------------------------------------------

    def append(self, transition: Transition, *, durable: bool) -> None:
        """See `ports.Journal`.

        Raises:
            JournalError: it could not be written.
        """
        now = self._standing()
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
        now.note(transition)
        self._state = state

    def record_config(self, wall: datetime, config: list[dict[str, Any]], diff: list[str]) -> None:
        """Keep the resolved config of every phase, and how it differs from the one before."""
        now = self._standing()
        line = line_of_config(now.number + 1, writer(), wall, config, diff)
        self._write(line, durable=True)
        now.number, now.config = now.number + 1, config

    def _standing(self) -> History:
        if self._now is None:
            self.read()
        assert self._now is not None
        return self._now

    def _write(self, line: bytes, *, durable: bool) -> None:
        try:
            if self._size == 0 and not content(self._storage, JOURNAL):
                self._storage.replace(JOURNAL, line)  # so that no crash leaves a part of it alone
            else:
                self._storage.append(JOURNAL, line, at=self._size, durable=durable)
        except OSError as error:
            raise JournalError(f"{JOURNAL} cannot be written: {error.strerror}") from error
        self._size += len(line)
        self._records += 1

    def _compact(self, now: History, wall: datetime) -> None:
        """Move all records to a segment. What goes wrong with it costs nothing but time."""
        self._records = 0
        try:
            data = self._storage.read(JOURNAL, _MAX_JOURNAL)
            if len(data) != self._size:
                return  # whoever appends next is told
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
        """The job's history; a torn last line is cut off the file, and kept beside it.

        Raises:
            JournalError: it cannot be read, or is damaged in another way.
        """
        history, data = self._look()
        whole = data[: len(data) - history.torn]
        if not whole.endswith(b"\n") and whole:
            whole += b"\n"
        if whole != data:
            self._mend(history, whole, data[len(data) - history.torn :])
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

    def look(self) -> History:
        """The same for who only looks on: nothing is mended, the last line may be half written.

        Raises:
            JournalError: see `read`.
        """
        return self._look()[0]

    def everything(self, history: History) -> Iterator[Transition]:
        """All transitions that led to `history`, which was read: the archived ones first.

        Raises:
            JournalError: a segment is missing, or cannot be read.
        """
        segments: list[str] = []
        archived = history.snapshot.archived if history.snapshot is not None else None
        while archived is not None:
            segments.append(archived)
            archived = self._named_by(archived)
        for name in reversed(segments):
            yield from follow(self._segment(name), name, checked=False).transitions
        yield from history.transitions

    def _named_by(self, name: str) -> str | None:
        """The segment before the segment `name`."""
        first, _, _ = self._segment(name).partition(b"\n")
        record, _ = parse(first, f"{name} line 1", 1)
        before = record.archived if isinstance(record, Snapshot) else None
        if before is not None and before >= name:
            raise DamagedJournalError(f"{name} names {before} as the segment before it")
        return before

    def _segment(self, name: str) -> bytes:
        data = content(self._storage, name)
        if data is None:
            raise JournalError(f"{name} is missing: the records in it cannot be told")
        check_unchanged(name, data)
        return data

    def _look(self) -> tuple[History, bytes]:
        """The history, and the content of the file, of which the last `torn` bytes do not count."""
        data = content(self._storage, JOURNAL)
        if not data:
            self._check_nothing_was(data)
            return History(), b""
        end = data.rfind(b"\n") + 1
        is_torn = 0 < end < len(data) and not _is_whole(data[end:])
        history = follow(data[:end] if is_torn else data, JOURNAL)
        history.torn = len(data) - end if is_torn else 0
        if history.past.reached is not None:
            recovery = Recovery(reached=history.past.reached)
            history.state = replace(history.state, recovery=recovery)
        return history, data

    def _check_nothing_was(self, data: bytes | None) -> None:
        """See to it that the job has no past, where its journal is empty (no crash leaves that), or
        None: missing. Whoever begins a new record moves its segments away too.

        Raises:
            DamagedJournalError: there is something of it.
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
        """Have the file hold the `whole` lines alone; what was `torn` is kept."""
        try:
            if torn:
                history.torn_kept = f"{TORN}{history.number + 1}-{checksum(torn)}.jsonl"
                self._storage.replace(history.torn_kept, torn)
            self._storage.replace(JOURNAL, whole)
        except OSError as error:
            raise JournalError(f"{JOURNAL} cannot be mended: {error.strerror}") from error


def content(storage: Storage, name: str) -> bytes | None:
    """The content of the journal or of a segment; None: there is no such file.

    Raises:
        DamagedJournalError: what is there is no such file.
        JournalError: it cannot be read.
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
    """The names of the archived segments, oldest first.

    Raises:
        JournalError: nobody can look.
    """
    return [f"{ARCHIVE}/{name}" for name in sorted(_names(storage, ARCHIVE)) if is_segment(name)]


def _names(storage: Storage, folder: str = "") -> list[str]:
    try:
        return storage.names(folder)
    except OSError as error:
        raise JournalError(f"{folder or 'model_dir'} cannot be read: {error.strerror}") from error


def _is_whole(line: bytes) -> bool:
    """Whether a last line lacks nothing but its end: no part of a record is an object too."""
    try:
        parse_object(line, JOURNAL)
    except UnreadableError:
        return False
    return True


def phases_on_record(storage: Storage) -> Sequence[str]:
    """The folders of the phases that the journal has, oldest first; none where it cannot be read,
    which whoever reads it next is told."""
    try:
        return FileJournal(storage).look().past.directories
    except JournalError:
        return ()


def follow(lines: bytes, name: str, *, checked: bool = True) -> History:
    """The history that the whole `lines` of the file `name` tell.

    Raises:
        DamagedJournalError: one of them is damaged; or does not follow, where that is `checked`.
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
        history.take(record, written, where, checked=checked)
    if checked:
        history.check_sound(name)
    return history
