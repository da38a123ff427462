"""The processes that a guard is asked to start, on record; a record that fails stops nobody.

There may be no record yet, and one may be on a disk that is full or gone. That is told once, and
the job goes on without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from supervisor.host import tree
from supervisor.host.notice import Notice, Tell
from supervisor.host.process_record import Entry, ProcessRecord, proven


class OnRecord:
    """What of the job is on record, and where the next processes are to be written."""

    def __init__(self, tell: Tell) -> None:
        """`tell` a person, once, of a record that cannot be written."""
        self._tell = tell
        self._is_told = False
        self._record: ProcessRecord | None = None
        self._unanswered: dict[int, int] = {}
        """By the number of each start that was not answered in time, its place in the record."""

    def use(self, record: ProcessRecord) -> None:
        """Have each process on record from now on."""
        self._record = record

    @property
    def path(self) -> Path | None:
        """Where the record is."""
        return self._record.path if self._record is not None else None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the guard needs to write to the record."""
        return (self._record.descriptor,) if self._record is not None else ()

    def place(self) -> int | None:
        """Where the next process is to be written.

        Raises:
            OSError: the record has no room, and gets none.
        """
        return self._record.place() if self._record is not None else None

    def written(self, place: int | None, pid: int, started: int) -> None:
        """The guard has written a process there."""
        if self._record is not None and place is not None:
            with self._telling():
                self._record.written(place, pid, Entry(started, pid))

    def unanswered(self, number: int, place: int | None) -> None:
        """The guard may still write to the place that the start `number` was given."""
        if place is not None:
            self._unanswered[number] = place

    def answered_late(self, number: int) -> None:
        """The start `number` was answered when nobody waited any more: what it started, ends."""
        self.give_back(self._unanswered.pop(number, None))

    def give_back(self, place: int | None) -> None:
        """Nothing is written there."""
        if self._record is not None and place is not None:
            with self._telling():
                self._record.give_back(place)

    def keep(self, sessions: Collection[int]) -> None:
        """All processes but those in these sessions are gone."""
        if self._record is not None:
            with self._telling():
                self._record.keep(sessions)

    def lost_guard(self) -> None:
        """All are gone, and so is the guard: it answers nothing any more."""
        self.keep(())
        while self._unanswered:
            self.give_back(self._unanswered.popitem()[1])

    def look(self, below: Mapping[int, tree.Stat]) -> None:
        """These are all processes of the job, as far as one look finds them."""
        if self._record is not None:
            with self._telling():
                if self._record.restore():
                    self._tell(
                        Notice(
                            "file-restored",
                            "processes.jsonl was changed by somebody: it is written again",
                            place="processes.jsonl",
                        )
                    )
                self._record.note(below)

    def proves(self, pid: int, seen: tree.Stat) -> bool:
        """Whether a process is of the job: see `record.proven`."""
        record = self._record
        return record is not None and proven(record.processes, pid, seen, record.says)

    def close(self) -> None:
        """Write no more."""
        if self._record is not None:
            self._record.close()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._is_told:
                self._tell(
                    Notice(
                        "file-unwritable",
                        f"processes.jsonl cannot be written: {error.strerror}",
                        place="processes.jsonl",
                        reason=error.strerror,
                    )
                )
            self._is_told = True
