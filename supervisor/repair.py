"""Repairs a job whose journal is damaged, was changed by hand, or is missing.

No data is lost: the old file is kept under another name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from supervisor.adapters.stores.journal import FileJournal, content, segments_of
from supervisor.files.attempts import ATTEMPTS_FOLDER, attempt_of, is_phase_folder
from supervisor.files.segments import ARCHIVE, DAMAGED, JOURNAL
from supervisor.history.archive import archived_name, checksum
from supervisor.history.fold import ContradictionError, History
from supervisor.history.record import (
    DamagedJournalError,
    JournalError,
    NewerJournalError,
    Snapshot,
    line_of_snapshot,
)
from supervisor.history.salvage import (
    UsablePart,
    find_usable_part,
    highest_attempt_told,
    highest_lease_epoch_told,
)
from supervisor.history.writer import writer
from supervisor.ports import Storage

_MAX_ATTEMPT = 10**9
"""The highest attempt number that counts: a folder with a higher one is not ours."""


def repair(
    storage: Storage, wall: datetime, attempt: int, check: Callable[[], None] = lambda: None
) -> str | None:
    """Write a journal with which the job goes on from the last usable record.

    Returns what was done, which the journal tells too; None if nothing is damaged.

    A record that can be read is believed, even if somebody changed it. What the damaged journal
    lacks is taken from the archived segments. If nothing is usable, a new record begins. The
    damaged file is kept under another name, and its usable part in the archive.

    `attempt` is the highest attempt number known from elsewhere: no later attempt gets a number up
    to it. `check` raises if model_dir is not ours any more.

    Raises:
        NewerJournalError: only a newer version of supervise can read the journal.
        DamagedJournalError: the thing in the journal's place is no file of ours; or the journal is
            whole and an archived segment is damaged, which cannot be repaired.
        JournalError: the journal cannot be read or written.
    """
    journal = FileJournal(storage)
    try:
        history = journal.read()
    except NewerJournalError:
        raise
    except ContradictionError as error:
        why = f"{error.why}. What is recorded is believed; where it is wrong, use an older copy"
    except DamagedJournalError as error:
        why = error.why
    else:
        _check_archive(journal, history)
        return history.torn_text if history.torn_bytes else None
    check()
    data = content(storage, JOURNAL)

    def read(segment: str) -> bytes:
        try:
            return content(storage, segment) or b""
        except DamagedJournalError:
            return b""

    found = find_usable_part(data or b"", segments_of(storage), read, wall) or UsablePart()
    kept = f"{DAMAGED}{checksum(data)}.jsonl" if data else None
    done = f"{why}. {_summary_text(data or b'', found)}"
    if kept:
        done += f". The old file is kept as {kept}"
    try:
        if data and kept:
            storage.replace(kept, data)
        archived = _archive(storage, found)
        highest = min(highest_attempt_told(data or b""), _MAX_ATTEMPT)
        epoch = highest_lease_epoch_told(data or b"")
        snapshot = _snapshot(found, wall, max(attempt, highest), epoch, archived, done)
        check()
        storage.replace(JOURNAL, line_of_snapshot(snapshot, writer()))
    except OSError as error:
        where = Path(str(error.filename or JOURNAL)).name
        raise JournalError(f"{where} cannot be written: {error.strerror}") from error
    return done


def _check_archive(journal: FileJournal, history: History) -> None:
    try:
        for _ in journal.all_transitions(history):
            pass
    except JournalError as error:
        why = error.why if isinstance(error, DamagedJournalError) else str(error)
        cut = f"{history.torn_text}. " if history.torn_bytes else ""
        raise DamagedJournalError(
            f"{cut}{JOURNAL} is whole, but {why}",
            "the job can go on without it; to see its past again, bring back a whole copy",
        ) from error


def highest_attempt(storage: Storage, since: str = "") -> int:
    """Returns the highest attempt number that has a folder, in the phase folder `since` or a later
    one ("": in any); 0 if there is none.

    Raises:
        OSError: the folders cannot be listed.
    """
    phases = [name for name in storage.names("") if is_phase_folder(name) and name >= since]
    names = (name for phase in phases for name in storage.names(f"{phase}/{ATTEMPTS_FOLDER}"))
    numbers = (attempt_of(name) or 0 for name in names)
    return max((number for number in numbers if number <= _MAX_ATTEMPT), default=0)


def _summary_text(data: bytes, found: UsablePart) -> str:
    """Returns from which record the job goes on and how many lines are lost, for people."""
    lost = data.count(b"\n") + (data[-1:] not in b"\n") - found.taken
    if not found.lines:
        return "No record in it is usable: the job begins a new journal"
    beginning = f", its beginning from {ARCHIVE}/" if found.segments else ""
    goes_on = f"The job goes on from record {found.history.number}{beginning}"
    after = "1 line after it is" if lost == 1 else f"{lost} lines after it are"
    return f"{goes_on}; {after} ignored" if lost else goes_on


def _archive(storage: Storage, found: UsablePart) -> str | None:
    """Write the usable lines as archived segments; returns the name of the newest segment, None if
    no line is usable."""
    if not found.lines:
        return None
    storage.make_directory(ARCHIVE, durable=True)
    newest = archived_name(found.history, found.lines)
    for name, lines in {**found.segments, newest: found.lines}.items():
        storage.replace(name, lines)
    return newest


def _snapshot(
    found: UsablePart, wall: datetime, attempt: int, epoch: int, archived: str | None, done: str
) -> Snapshot:
    history = found.history
    state = history.state.durable()
    state = replace(state, attempt=max(state.attempt, attempt))
    past = replace(history.past, lease_epoch=max(history.past.lease_epoch, epoch))
    known = state, past, history.policy, history.config
    return Snapshot(history.number + 1, wall, *known, archived, {}, done)
