"""What `supervise serve` shows of the job in a model_dir. It reads a journal again only where the
file has changed."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

from supervisor.adapters.stores.journal import DamagedJournalError, History, JournalError
from supervisor.adapters.stores.lease_places import LEASE
from supervisor.cli.job_view import JobView, all_transitions, owner_on_disk, standstill, view
from supervisor.cli.report import report_of
from supervisor.cli.status import step_of_running_attempt
from supervisor.cli.told_failure import failure_that_counts
from supervisor.core.state import JobState
from supervisor.diagnosis.redaction import Redactor
from supervisor.files.live_status import MAX_SIZE, STATUS, LiveProgress, LiveStatus, parse
from supervisor.files.segments import JOURNAL
from supervisor.goodput.kept import ledger_after, ledger_before
from supervisor.host.identity import Identity
from supervisor.narrative.standing import standing
from supervisor.protocol import reading
from supervisor.protocol.location import Uri
from supervisor.web.job_facts import JobFacts, MadeReport, ReportError, Seen, Unreadable
from supervisor.web.tally import Tally

_PAUSE = 1.0
"""Seconds between two looks at a job on a disk. A look at files that did not change reads none."""
_PAUSE_IN_BUCKET = 30.0
"""The same in a bucket, where each look fetches the journal."""
_RENEWED = (LEASE, STATUS)
"""Files that a living supervisor writes again and again; the first one only where other hosts may
see model_dir."""
_SILENT = 60.0
"""Seconds without a sign of life after which a supervisor counts as gone, or as one that hangs."""
_ERRORS = (JournalError, OSError, ValueError, ImportError)
"""What reading a job may raise: see `view`."""
_PATIENCE = 10.0
"""Seconds that a request waits for a report; the server cuts it off after 30 s."""
_Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Report:
    """A report that a thread makes, or has made."""

    records: int
    made: Future[MadeReport] = field(default_factory=Future)


class ServedJob:
    """A job that is shown; see `supervisor.web.watched_jobs.Job`."""

    def __init__(self, place: Path | Uri, name: str, patience: float = _PATIENCE) -> None:
        """`place` is its model_dir; `patience` is how many seconds a request waits for a report."""
        self.place = place
        self.name = name
        self.pause = _PAUSE if isinstance(place, Path) else _PAUSE_IN_BUCKET
        self._redact = Redactor(os.environ).text
        self._patience = patience
        self._report: _Report | None = None
        """The last report that was begun."""
        self._last: MadeReport | None = None
        """The last one that was made."""
        self._beginning = threading.Lock()
        self._stamp: _Stamp = ()
        self._seen: Seen | None = None
        self._older = _OlderRecords(place)
        self._renewed = (
            [Renewals(place / name) for name in _RENEWED] if isinstance(place, Path) else []
        )

    def look(self) -> Seen:
        """See `supervisor.web.watched_jobs.Job`."""
        if isinstance(self.place, Uri):
            return self._read()
        stamp = _stamp(self.place / JOURNAL)
        if self._seen is None or stamp != self._stamp:
            self._seen, self._stamp = self._read(), stamp
        if isinstance(self._seen, JobFacts) and not self._seen.has_ended:
            self._seen = self._with_signs(self._seen, self.place)
        return self._seen

    def report(self, records: int) -> MadeReport:
        """See `supervisor.web.watched_jobs.Job`. The report of a long job takes longer than a
        connection may: it is made beside the requests, one at a time."""
        with self._beginning:
            it = self._report
            if it is None or (it.made.done() and (it.records != records or it.made.exception())):
                it = self._report = _Report(records)
                threading.Thread(target=self._make, args=(it,), daemon=True).start()
        try:
            return it.made.result(self._patience)
        except TimeoutError:
            if self._last is None:
                raise ReportError("its report is being made: this page loads it then") from None
            return self._last

    def _make(self, it: _Report) -> None:
        from supervisor.report.page import html_of

        try:
            found = report_of(self.place)
            data = json.dumps(found.as_json(), allow_nan=False)
            self._last = MadeReport(it.records, html_of(found), data)
            it.made.set_result(self._last)
        except _ERRORS as error:
            it.made.set_exception(ReportError(self._why(error)))
        except Exception as error:  # an error of ours: the request raises it
            it.made.set_exception(error)

    def _read(self) -> Seen:
        try:
            return _facts(view(self.place), self._older)
        except _ERRORS as error:
            return Unreadable(self._why(error))

    def _why(self, error: Exception) -> str:
        if isinstance(error, DamagedJournalError):
            return self._redact(error.message_for(self.place))
        is_of_a_file = isinstance(error, JournalError | OSError)
        return self._redact(f"{self.place}: {error}" if is_of_a_file else str(error))

    def _with_signs(self, facts: JobFacts, model_dir: Path) -> JobFacts:
        """Returns the facts with what the files beside the journal say now."""
        owner, identity = owner_on_disk(model_dir)
        status = _status_of(identity, model_dir)
        renewed = self._renewed if status is not None else self._renewed[:1]
        ages = [age for file in renewed if (age := file.age()) is not None]
        still = standstill(identity)
        if identity is not None and ages and min(ages) > _SILENT:
            still = still or f"it has given no sign of life for {min(ages):.0f} s"
        return replace(
            facts,
            owner=owner,
            standstill=still,
            signed_at=time.time() - min(ages) if ages else None,
            stage=status.stage if status is not None else None,
            live=status.live if status is not None else LiveProgress(),
            target_step=status.max_steps if status is not None else None,
        )


def _status_of(owner: Identity | None, model_dir: Path) -> LiveStatus | None:
    """Returns what the supervisor `owner` says in `status.json`; None: it says nothing there."""
    try:
        status = parse(reading.read(model_dir / STATUS, MAX_SIZE))
    except (OSError, ValueError):
        return None
    return status if owner is not None and status.supervisor == owner.to_json() else None


def _facts(job: JobView, older: _OlderRecords) -> JobFacts:
    history, state = job.history, job.history.state.durable()
    ledger, tally = ledger_before(history), older.tally(job)
    if ledger is not None:
        ledger = ledger_after(ledger, history.transitions)
    if tally is not None:
        tally = reduce(Tally.after, history.transitions, tally)
    return JobFacts(
        history.number,
        state,
        standing(state, job.policy),
        ledger,
        tally,
        failure_that_counts(history, state),
        history.past.version,
        job.owner,
        job.standstill,
        _told_step(history, state),
        job.policy.phases[state.phase].num_units,
    )


def _told_step(history: History, state: JobState) -> int | None:
    step, end = step_of_running_attempt(history, state), history.past.last_end
    return step if step is not None or end is None else end.step


class _OlderRecords:
    """The archived records of a job, which never change and are read once."""

    def __init__(self, place: Path | Uri) -> None:
        self._place = place
        self._newest: str | None = None
        self._tally: Tally | None = Tally()

    def tally(self, job: JobView) -> Tally | None:
        """Returns the sums over the records before those of the job's journal; None: they cannot be
        read."""
        snapshot = job.history.snapshot
        newest = snapshot.archived if snapshot is not None else None
        if newest != self._newest:
            self._newest, self._tally = newest, self._read(job)
        return self._tally

    def _read(self, job: JobView) -> Tally | None:
        older = replace(job, history=replace(job.history, transitions=[]))
        try:
            return reduce(Tally.after, all_transitions(older, self._place), Tally())
        except (JournalError, OSError):
            return None


class Renewals:
    """How old a file is that its writer renews, by the clock of this host: the clocks of two hosts
    are never compared."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._stamp: _Stamp = ()
        self._since = 0.0

    def age(self) -> float | None:
        """Returns the seconds since the file was seen to change; None: there is no file."""
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._stamp, self._since = stamp, self._clock()
        return self._clock() - self._since if stamp else None


def _stamp(path: Path) -> _Stamp:
    """Returns a value that changes whenever the file does; empty if it cannot be seen."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
