"""Has a job go on whose journal is damaged, was changed, or is gone. All that there was is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from supervisor.adapters.stores.journal import FileJournal, content, segments_of
from supervisor.files.attempts import FOLDER, attempt_of, is_phase_folder
from supervisor.files.segments import ARCHIVE, DAMAGED, JOURNAL
from supervisor.history.archive import archived_name, checksum
from supervisor.history.fold import History
from supervisor.history.record import (
    DamagedJournalError,
    JournalError,
    NewerJournalError,
    Snapshot,
    line_of_snapshot,
)
from supervisor.history.salvage import Salvage, highest_attempt_told, salvage
from supervisor.history.writer import writer
from supervisor.ports import Storage

_MAX_ATTEMPT = 10**9
"""A folder with a higher number was made by nobody of us."""


def repair(
    storage: Storage, wall: datetime, attempt: int, check: Callable[[], None] = lambda: None
) -> str | None:
    """Have the job go on from the last record that can be followed; returns what was done, which
    the journal tells too, and None where nothing is damaged.

    Records win that can be read: what somebody changed in one is believed from now on. What the
    journal does not tell any more is taken from the archived segments. Where nothing can be
    followed, a new record begins. All that there was is kept: as it was under another name, and as
    far as it can be followed in the archive. `attempt` is the highest number of an attempt that is
    known from elsewhere: none gets it again. `check` raises where model_dir is not ours any more.

    Raises:
        NewerJournalError: only a newer version can read it.
        DamagedJournalError: what is in its place is no file of ours; or a segment is damaged, for
            which there is nothing to be done.
        JournalError: it cannot be read or written.
    """
    journal = FileJournal(storage)
    try:
        history = journal.read()
    except NewerJournalError:
        raise
    except DamagedJournalError as error:
        why = error.why
    else:
        _check_archive(journal, history)
        return history.cut_off if history.torn else None
    check()
    data = content(storage, JOURNAL)

    def read(segment: str) -> bytes:
        try:
            return content(storage, segment) or b""
        except DamagedJournalError:
            return b""

    found = salvage(data or b"", segments_of(storage), read, wall) or Salvage()
    kept = f"{DAMAGED}{checksum(data)}.jsonl" if data else None
    done = f"{why}. {_told(data or b'', found)}" + (f". The file as it was is {kept}" * bool(kept))
    try:
        if data and kept:
            storage.replace(kept, data)
        archived = _archive(storage, found)
        told = min(highest_attempt_told(data or b""), _MAX_ATTEMPT)
        snapshot = _snapshot(found, wall, max(attempt, told), archived, done)
        check()
        storage.replace(JOURNAL, line_of_snapshot(snapshot, writer()))
    except OSError as error:
        where = Path(str(error.filename or JOURNAL)).name
        raise JournalError(f"{where} cannot be written: {error.strerror}") from error
    return done


def _check_archive(journal: FileJournal, history: History) -> None:
    try:
        for _ in journal.everything(history):
            pass
    except JournalError as error:
        why = error.why if isinstance(error, DamagedJournalError) else str(error)
        cut = f"{history.cut_off}. " if history.torn else ""
        raise DamagedJournalError(
            f"{cut}{JOURNAL} is whole, but {why}",
            "the job goes on without; to be told its past again, bring back a copy that is whole",
        ) from error


def highest_attempt(storage: Storage, since: str = "") -> int:
    """The highest number of an attempt that has a folder in that of a phase, `since` one or of all;
    0: none has.

    Raises:
        OSError: nobody can look.
    """
    phases = [name for name in storage.names("") if is_phase_folder(name) and name >= since]
    names = (name for phase in phases for name in storage.names(f"{phase}/{FOLDER}"))
    numbers = (attempt_of(name) or 0 for name in names)
    return max((number for number in numbers if number <= _MAX_ATTEMPT), default=0)


def _told(data: bytes, found: Salvage) -> str:
    """From where the job goes on, and what is lost."""
    lost = data.count(b"\n") + (data[-1:] not in b"\n") - found.taken
    if not found.lines:
        return "Nothing of it can be followed: the job begins a new record"
    beginning = f", its beginning from {ARCHIVE}/" if found.segments else ""
    goes_on = f"The job goes on from record {found.history.number}{beginning}"
    behind = "1 line behind it counts" if lost == 1 else f"{lost} lines behind it count"
    return f"{goes_on}; {behind} no more" if lost else goes_on


def _archive(storage: Storage, found: Salvage) -> str | None:
    """Keep what was followed in segments; returns the name of the newest."""
    if not found.lines:
        return None
    storage.make_directory(ARCHIVE, durable=True)
    newest = archived_name(found.history, found.lines)
    for name, lines in {**found.segments, newest: found.lines}.items():
        storage.replace(name, lines)
    return newest


def _snapshot(
    found: Salvage, wall: datetime, attempt: int, archived: str | None, done: str
) -> Snapshot:
    history = found.history
    state = history.state.durable()
    state = replace(state, attempt=max(state.attempt, attempt))
    known = state, history.past, history.policy, history.config
    return Snapshot(history.number + 1, wall, *known, archived, {}, done)
