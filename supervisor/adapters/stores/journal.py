"""The journal's file: the truth about a job, and the segments that its older records move to.

`journal.jsonl` begins with a snapshot where it has grown long before, so that it opens in a moment
after any time. What was before is in `journal/`, in segments that are never written again; each
begins with the snapshot that names the one before it. Nothing is deleted.

A last line without its end is what a crash in the middle of a write leaves; it is cut off and told.
A record is written whole or not at all, and only behind the one before it: where the file is not
what this supervisor left (removed, cut, written to by another), it stops rather than write what
cannot be replayed. To compact, the segment is written first and the journal replaced then: whoever
is killed in between leaves a segment that nobody names, and does it again.

What the records say: see `supervisor.history`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from supervisor.core.recovery import Recovery
from supervisor.core.state import JobState
from supervisor.files.segments import ARCHIVE, DAMAGED, JOURNAL
from supervisor.history.encoding import encode
from supervisor.history.fold import History as History
from supervisor.history.record import (
    REMEDY,
    Snapshot,
    Turn,
    line_of_config,
    line_of_snapshot,
    line_of_turn,
    parse,
)
from supervisor.history.record import DamagedJournalError as DamagedJournalError
from supervisor.history.record import JournalError as JournalError
from supervisor.history.writer import writer
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Storage, Transition
from supervisor.protocol.reading import UnreadableError

_MAX_JOURNAL = 256 << 20
"""Bytes; one that was never compacted has a tenth of it after ten thousand attempts."""
COMPACT_AFTER = 1000
"""Records that make a segment: half a megabyte, and a fifth of a second to read."""
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

    def repair(self, wall: datetime, attempt: int) -> str | None:
        """Have the job go on from the last record that can be followed; returns what was done,
        which the journal tells too, and None where nothing is damaged.

        Records win that can be read: what somebody changed in one is believed from now on. All that
        there was is kept: as it was under another name, and as far as it can be followed in the
        archive. `attempt` is the highest number of an attempt that is known from elsewhere: none
        gets it again.

        Raises:
            DamagedJournalError: nothing of it can be followed.
            JournalError: it cannot be read or written.
        """
        data = self._content(JOURNAL) or b""
        try:
            follow(data[: data.rfind(b"\n") + 1], JOURNAL)
        except DamagedJournalError as error:
            why = str(error).removesuffix(f": {REMEDY}").removesuffix(f"; {REMEDY}")
        else:
            return None
        history, size = _as_far_as_sound(data)
        if history.policy is None:
            raise DamagedJournalError(
                f"{why}: nothing of it can be followed; bring back a copy that is whole, or move "
                "it away to begin a new record"
            )
        lost = data[size:].count(b"\n")
        kept = f"{DAMAGED}{hashlib.sha256(data).hexdigest()[:8]}.jsonl"
        done = (
            f"{why}. The job goes on from record {history.number}; {lost} lines behind it count no "
            f"more. The file as it was is {kept}"
        )
        history.state = replace(history.state, attempt=max(history.state.attempt, attempt))
        archived = archived_name(history, data[:size])
        snapshot = replace(self._snapshot(history, wall, archived), repaired=done)
        try:
            self._storage.replace(kept, data)
            self._storage.make_directory(ARCHIVE, durable=True)
            self._storage.replace(archived, data[:size])
            self._storage.replace(JOURNAL, line_of_snapshot(snapshot, writer()))
        except OSError as error:
            raise JournalError(f"{JOURNAL} cannot be repaired: {error.strerror}") from error
        return done

    def _standing(self) -> History:
        if self._now is None:
            self.read()
        assert self._now is not None
        return self._now

    def _write(self, line: bytes, *, durable: bool) -> None:
        try:
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
        """The job's history; a torn last line is cut off the file.

        Raises:
            JournalError: it cannot be read, or a line before the last is damaged.
        """
        history, whole, rest = self._look()
        if rest:
            self._cut(whole)
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
            yield from follow(self._content(name) or b"", name, checked=False).transitions
        yield from history.transitions

    def _named_by(self, name: str) -> str | None:
        """The segment before the segment `name`."""
        first, _, _ = (self._content(name) or b"").partition(b"\n")
        record, _ = parse(first, f"{name} line 1", 1)
        before = record.archived if isinstance(record, Snapshot) else None
        if before is not None and before >= name:
            raise DamagedJournalError(f"{name} names {before} as the segment before it: {REMEDY}")
        return before

    def _look(self) -> tuple[History, bytes, bytes]:
        """The history, the whole lines that tell it, and what follows on them."""
        data = self._content(JOURNAL) or b""
        end = data.rfind(b"\n") + 1
        history = follow(data[:end], JOURNAL)
        history.torn = len(data) - end
        if history.past.reached is not None:
            recovery = Recovery(reached=history.past.reached)
            history.state = replace(history.state, recovery=recovery)
        return history, data[:end], data[end:]

    def _content(self, name: str) -> bytes | None:
        try:
            return self._storage.read(name, _MAX_JOURNAL)
        except FileNotFoundError as error:
            if name == JOURNAL:
                return None
            raise JournalError(f"{name} is missing: the records in it cannot be told") from error
        except UnreadableError as error:
            raise DamagedJournalError(f"{name} {error.why}: {REMEDY}") from error
        except OSError as error:
            raise JournalError(f"{name} cannot be read: {error.strerror}") from error

    def _cut(self, whole: bytes) -> None:
        try:
            self._storage.replace(JOURNAL, whole)
        except OSError as error:
            raise JournalError(f"{JOURNAL} cannot be mended: {error.strerror}") from error


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
    for place, line in enumerate(lines.splitlines(), start=1):
        where = f"{name} line {place}"
        record, written = parse(line, where, history.number + 1)
        history.take(record, written, where, checked=checked)
    if checked:
        history.check_sound(name)
    return history


def _as_far_as_sound(data: bytes) -> tuple[History, int]:
    """The history that the lines of the journal tell up to the first that cannot be followed, and
    how many bytes they have."""
    sound, size = History(), 0
    while end := data.find(b"\n", size) + 1:
        try:
            record, written = parse(data[size : end - 1], JOURNAL, sound.number + 1)
            following = replace(sound, transitions=[])
            following.take(record, written, JOURNAL, checked=False)
            following.check_sound(JOURNAL)
        except DamagedJournalError:
            break
        sound, size = following, end
    return sound, size


def archived_name(history: History, data: bytes) -> str:
    """The segment that holds `data`, all lines that led to `history`: its last record, so that
    later segments have later names, and a sum of the content."""
    return f"{ARCHIVE}/{history.number:012d}-{hashlib.sha256(data).hexdigest()[:8]}.jsonl"
