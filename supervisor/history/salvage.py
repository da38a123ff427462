"""Finds the part of a damaged journal that is still usable. No I/O: that is in `supervisor.repair`.

A journal is usable up to its first damaged line. If that is the very first line, the lines after it
may be usable too: the record of the first supervisor has the whole state, and the snapshot that a
compacted journal begins with follows from the segment before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from supervisor.core.decisions import StartWorkers
from supervisor.core.events import SupervisorStarted
from supervisor.files.segments import JOURNAL
from supervisor.history.archive import archived_name
from supervisor.history.fold import History
from supervisor.history.record import (
    ConfigRecord,
    DamagedJournalError,
    Record,
    Snapshot,
    Turn,
    line_of_snapshot,
    parse,
)
from supervisor.history.writer import writer


@dataclass(frozen=True, slots=True)
class UsablePart:
    """The usable part of a journal."""

    history: History = field(default_factory=History)
    lines: bytes = b""
    """The lines that lead to `history`. The first may be a snapshot that was made for them."""
    taken: int = 0
    """How many of these lines come from the damaged file."""
    segments: Mapping[str, bytes] = field(default_factory=dict)
    """The content of segments that must be written again, by name."""


def find_usable_part(
    data: bytes, segments: Sequence[str], read: Callable[[str], bytes], wall: datetime
) -> UsablePart | None:
    """Returns the usable part of the journal `data`, or else of its `segments`; None: there is
    none.

    `segments` are names, oldest first; `read` reads one.
    """
    history, lines = _usable_prefix(data)
    if history.policy is not None:
        return UsablePart(history, lines, lines.count(b"\n"))
    if (begun := _part_after(data, History(), _is_the_first_start, None, wall)) is not None:
        return begun
    if not segments:
        return None
    *older, newest = segments
    base = find_usable_part(read(newest), older, read, wall)
    if base is None:
        return None
    name = archived_name(base.history, base.lines)
    anew = {**base.segments, name: base.lines}
    last = base.history.number

    def follows(record: Record) -> bool:  # a snapshot may have been between them
        return isinstance(record, Turn | ConfigRecord) and record.number in (last + 1, last + 2)

    found = _part_after(data, base.history, follows, name, wall)
    if found is None:
        line = _snapshot_line(base.history, base.history.number + 1, name, wall)
        found = UsablePart(_usable_prefix(line)[0], line)
    return replace(found, segments=anew)


def _part_after(
    data: bytes,
    base: History,
    follows: Callable[[Record], bool],
    archived: str | None,
    wall: datetime,
) -> UsablePart | None:
    """Returns the usable part from the first line that `follows` on `base`; None: there is none.

    It begins with a snapshot of `base`, whose records are in the segment `archived`.
    """
    for start, record in _records(data):
        if follows(record):
            number = record.number - 1
            first = _snapshot_line(base, number, archived, wall) if number else b""
            history, lines = _usable_prefix(first + data[start:])
            taken = lines.count(b"\n") - first.count(b"\n")
            return UsablePart(history, lines, taken) if taken else None
    return None


def _is_the_first_start(record: Record) -> bool:
    """True if it is the record of the first supervisor, which gives the job its id. It has the
    whole state."""
    return (
        isinstance(record, Turn)
        and isinstance(record.event, SupervisorStarted)
        and "job" in (record.changes or ())
    )


def highest_attempt_told(data: bytes) -> int:
    """Returns the highest attempt number in any readable line; 0: there is none."""
    turns = (record for _, record in _records(data) if isinstance(record, Turn))
    starts = (each for turn in turns for each in turn.decisions if isinstance(each, StartWorkers))
    return max((start.attempt for start in starts), default=0)


def highest_lease_epoch_told(data: bytes) -> int:
    """Returns the highest `lease_epoch` in any readable line; 0: there is none."""
    turns = (record for _, record in _records(data) if isinstance(record, Turn))
    events = (turn.event for turn in turns)
    return max((e.lease_epoch for e in events if isinstance(e, SupervisorStarted)), default=0)


def _snapshot_line(history: History, number: int, archived: str | None, wall: datetime) -> bytes:
    state, past = history.state.durable(), history.past
    snapshot = Snapshot(number, wall, state, past, history.policy, history.config, archived)
    return line_of_snapshot(snapshot, writer())


def _records(data: bytes) -> Iterator[tuple[int, Record]]:
    """Yields the offset and the record of each readable line."""
    start = 0
    while end := data.find(b"\n", start) + 1:
        with suppress(DamagedJournalError):
            yield start, parse(data[start : end - 1], JOURNAL, 0)[0]
        start = end


def _usable_prefix(data: bytes) -> tuple[History, bytes]:
    """Returns the history up to the first unusable line, and the lines up to there."""
    sound, size = History(), 0
    while end := data.find(b"\n", size) + 1:
        try:
            record, written = parse(data[size : end - 1], JOURNAL, sound.number + 1)
            following = replace(sound, transitions=[])
            following.apply_record(record, written, JOURNAL, checked=False)
            following.check_final_state(JOURNAL)
        except DamagedJournalError:
            break
        sound, size = following, end
    return sound, data[:size]
