"""Keeps the record of processes while the guard starts them; a record that fails stops no job.

There may be no record yet, or it may be on a disk that is full or gone. A person is told once, and
the job goes on without a record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from supervisor.host import tree
from supervisor.host.notice import Notice, Tell
from supervisor.host.process_record import Entry, ProcessRecord, proven


class OnRecord:
    """The `ProcessRecord` in use, if there is one. All offsets (`place`) are into its file."""

    def __init__(self, tell: Tell) -> None:
        """`tell` is called once if the record cannot be written."""
        self._tell = tell
        self._is_told = False
        self._record: ProcessRecord | None = None
        self._unanswered: dict[int, int] = {}
        """Offset reserved for each start that was not answered in time, by the request's number."""

    def use(self, record: ProcessRecord) -> None:
        """Record each process in `record` from now on."""
        self._record = record

    @property
    def path(self) -> Path | None:
        """The path of the record; None: there is none."""
        return self._record.path if self._record is not None else None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that the guard needs to write to the record; empty without one."""
        return (self._record.descriptor,) if self._record is not None else ()

    def place(self) -> int | None:
        """Reserve the offset for the next process's line; None: there is no record.

        Raises:
            OSError: the disk has no room for more lines.
        """
        return self._record.place() if self._record is not None else None

    def written(self, place: int | None, pid: int, started: int) -> None:
        """Register that the guard has written process `pid` at `place`."""
        if self._record is not None and place is not None:
            with self._telling():
                self._record.written(place, pid, Entry(started, pid))

    def unanswered(self, number: int, place: int | None) -> None:
        """Keep `place` reserved: the guard may still write there for the start `number`."""
        if place is not None:
            self._unanswered[number] = place

    def answered_late(self, number: int) -> None:
        """Free the offset of the start `number`, which was answered too late: the process that it
        started is killed."""
        self.give_back(self._unanswered.pop(number, None))

    def give_back(self, place: int | None) -> None:
        """Free `place`, where nothing was written."""
        if self._record is not None and place is not None:
            with self._telling():
                self._record.give_back(place)

    def keep(self, sessions: Collection[int]) -> None:
        """Remove all processes but those in these sessions: they have ended."""
        if self._record is not None:
            with self._telling():
                self._record.keep(sessions)

    def lost_guard(self) -> None:
        """Remove all processes: they and the guard are gone, so no late answer can come."""
        self.keep(())
        while self._unanswered:
            self.give_back(self._unanswered.popitem()[1])

    def look(self, below: Mapping[int, tree.Stat]) -> None:
        """Update the record with `below`, all processes of the job that one scan found, by pid."""
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
                self._record.sync(below)

    def proves(self, pid: int, seen: tree.Stat) -> bool:
        """Whether a process is of the job: see `process_record.proven`."""
        record = self._record
        return record is not None and proven(
            record.processes, pid, seen, record.environment_names_run
        )

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
