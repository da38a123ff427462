"""Writes the result of each attempt of a phase, for tools and for people with jq.

summary.json holds counts and the records of the last attempts (`narrative.attempt_records`). It is
written as a whole at each change, so older records go to attempts.jsonl beside it, one line each. A
new supervisor reads in attempts.jsonl which records it has. So a supervisor that is killed between
two writes causes no missing and no double record. A torn line stays, and no reader can parse it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from supervisor.config.plan import PhasePlan
from supervisor.core.policy import RestartPolicy
from supervisor.files.segments import ATTEMPTS_FILE
from supervisor.host.notice import Notice, Tell
from supervisor.narrative.attempt_records import AttemptRecords, Record
from supervisor.narrative.rendered import RenderedTransition
from supervisor.narrative.standing import standing
from supervisor.ports import Storage
from supervisor.protocol.reading import UnreadableError, parse_object

LAST = 100
"""Number of attempts whose records are in summary.json."""
_LARGEST = 1 << 30
"""Largest attempts.jsonl that is read, in bytes: a few hundred thousand attempts."""


class Summary:
    """Writes the records of the current phase. They are made of the events of the log alone."""

    def __init__(
        self,
        storage: Storage,
        plans: Sequence[PhasePlan],
        policy: RestartPolicy,
        on_error: Tell,
        *,
        last: int = LAST,
    ) -> None:
        """`last` is the number of attempts whose records summary.json holds."""
        self._storage = storage
        self._plans = plans
        self._policy = policy
        self._on_error = on_error
        self._records = AttemptRecords(last)
        self._older_records_file = _OlderRecordsFile(storage, None)
        self._broken: set[str] = set()
        """Names of the files whose last write failed."""
        self.view = self._records.view
        self.restore = self._records.restore

    def replay(self, earlier: Iterable[RenderedTransition]) -> None:
        """Take in the transitions of earlier supervisors, and write nothing."""
        for each in earlier:
            self._take(each)

    def observe(self, told: RenderedTransition) -> None:
        """See `observers.LineObserver`."""
        directory = told.after.directory
        if self._take(told) and directory is not None:
            self._try(ATTEMPTS_FILE, self._write_older)
            data = json.dumps(self._body(told), indent=2).encode() + b"\n"
            path = f"{directory}/summary.json"
            self._try("summary.json", lambda: self._storage.replace(path, data))

    def _take(self, told: RenderedTransition) -> bool:
        """Update the records; returns whether an event was about an attempt or the job."""
        wall = told.wall.isoformat(timespec="milliseconds")
        num_devices = self._plan(told).num_devices
        taken = [self._records.take(line, wall, num_devices) for line in told.lines]
        return any(taken)

    def _plan(self, told: RenderedTransition) -> PhasePlan:
        return self._plans[min(told.after.phase, len(self._plans) - 1)]

    def _body(self, told: RenderedTransition) -> dict[str, Any]:
        now, plan = standing(told.after, self._policy), self._plan(told)
        return {
            "job": now.job,
            "phase": plan.name,
            "status": now.status,
            "exit_code": now.exit_code,
            "max_steps": plan.max_steps,
            "highest_committed_step": now.highest_committed,
            "checkpoint_directory": str(plan.saving_in(told.after.checkpoints).checkpoint_dir),
            "restarts_used": now.restarts,
            "preemptions_used": now.preemptions,
            "restarts_in_all": now.restarts_in_all,
            **self._records.body(),
        }

    def _write_older(self) -> None:
        directory = self._records.directory
        path = f"{directory}/{ATTEMPTS_FILE}" if directory is not None else None
        if path != self._older_records_file.path:
            self._older_records_file = _OlderRecordsFile(self._storage, path)
        self._older_records_file.write(self._records.older)

    def _try(self, name: str, write: Callable[[], None]) -> None:
        """Call `write`; if it fails, tell a person, once per file: it must not end the job."""
        try:
            write()
            self._broken.discard(name)
        except OSError as error:
            if name not in self._broken:
                self._on_error(
                    Notice(
                        "file-unwritable",
                        f"{name} cannot be written: {error.strerror or error}",
                        place=name,
                        reason=error.strerror,
                    )
                )
            self._broken.add(name)


class _OlderRecordsFile:
    """attempts.jsonl: the records that are too old for summary.json."""

    def __init__(self, storage: Storage, path: str | None) -> None:
        """`path` is None before a phase has begun."""
        self._storage = storage
        self.path = path
        self._next: bytes | None = None
        """Bytes to write first: a newline after a torn last line; None: the file was not read."""

    def write(self, records: list[Record]) -> None:
        """Append to the file those of `records` that it does not have, and clear the list.

        Raises:
            OSError: they cannot be written. The next call tries again, with the newest of them.
        """
        if not records or self.path is None:
            return
        try:
            if self._next is None:
                self._next = self._drop_written(self.path, records)
            if records:
                lines = b"".join(map(_line, records))
                self._storage.append(self.path, self._next + lines)
                self._next = b""
                records.clear()
        except OSError:
            del records[:-LAST]  # the next supervisor takes the others from the journal
            raise

    def _drop_written(self, path: str, records: list[Record]) -> bytes:
        """Remove from `records` what the file has; returns the value for `_next`."""
        try:
            data = self._storage.read(path, _LARGEST)
        except FileNotFoundError:
            return b""
        there = set()
        for line in data.splitlines():
            try:
                attempt = parse_object(line, path).get("attempt")
            except UnreadableError:
                continue
            if isinstance(attempt, int):
                there.add(attempt)
        records[:] = [record for record in records if record["attempt"] not in there]
        return b"" if data.endswith(b"\n") or not data else b"\n"


def _line(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
