"""Looks at each job again and again, in a thread for each, and keeps what was seen last.

So a request costs no look at a disk: however many ask, the files are read once, and a file system
that hangs holds up the thread of its own job alone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from supervisor.web.job_facts import MadeReport, Seen, Unreadable


class Job(Protocol):
    """A job that can be looked at."""

    @property
    def name(self) -> str:
        """Its name: no other job that is shown has it."""
        ...

    @property
    def pause(self) -> float:
        """Seconds between two looks."""
        ...

    def look(self) -> Seen:
        """Returns what its files say now; never raises an error of theirs."""
        ...

    def report(self, records: int) -> MadeReport:
        """Returns its report, which is made once for this number of the last record; the one
        before where that takes long.

        Raises:
            ReportError: it cannot be made, or there is none yet.
        """
        ...


@dataclass(slots=True)
class _Watched:
    seen: Seen | None = None
    """None: it was not looked at yet."""
    changes: int = 0
    """How often something else was seen than before."""


class WatchedJobs:
    """The jobs that are shown."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self._watched = {job.name: _Watched() for job in jobs}
        self._changed = threading.Condition()
        self._is_over = threading.Event()

    def start(self) -> None:
        """Begin to look."""
        for job in self.jobs:
            name = f"looks at {job.name}"
            threading.Thread(target=self._look_on, args=(job,), name=name, daemon=True).start()

    def stop(self) -> None:
        """End all looks and waits soon; does not wait for it."""
        self._is_over.set()
        with self._changed:
            self._changed.notify_all()

    def seen(self) -> Mapping[str, Seen]:
        """Returns what was seen last of each job that was looked at, by its name."""
        return {name: it.seen for name, it in self._watched.items() if it.seen is not None}

    @property
    def are_all_seen(self) -> bool:
        """Whether each job was looked at."""
        return all(it.seen is not None for it in self._watched.values())

    def changes(self, name: str | None) -> int:
        """Returns how often the job has changed, or all of them together (None)."""
        if name is not None:
            return self._watched[name].changes
        return sum(it.changes for it in self._watched.values())

    def wait_for_change(self, name: str | None, since: int, seconds: float) -> bool:
        """Wait until `changes` is not `since` any more, `seconds` at most; returns whether there is
        still something to wait for."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.changes(name) != since or self._is_over.is_set(), seconds
            )
        return not self._is_over.is_set()

    def _look_on(self, job: Job) -> None:
        watched = self._watched[job.name]
        while not self._is_over.is_set():
            try:
                seen = job.look()
            except Exception as error:  # an error of ours: it is told, and the others are shown
                sys.excepthook(type(error), error, error.__traceback__)
                seen = Unreadable(f"it cannot be shown: {error!r}")
            if seen != watched.seen:
                with self._changed:
                    watched.seen, watched.changes = seen, watched.changes + 1
                    self._changed.notify_all()
            self._is_over.wait(job.pause)
