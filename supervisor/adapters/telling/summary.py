"""What became of each attempt of a phase, for tools and for people with jq.

summary.json holds counts and the records of the last attempts (`narrative.attempt_records`). It is
written anew at each change, so what is older goes to attempts.jsonl beside it, one line each. Which
records are there is read from the file itself: a supervisor that is killed between two writes
leaves none out and writes none twice, and a line that was torn becomes one that no reader parses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from supervisor.config.plan import PhasePlan
from supervisor.core.policy import RestartPolicy
from supervisor.files.segments import ATTEMPTS
from supervisor.host.notice import Notice, Tell
from supervisor.narrative.attempt_records import AttemptRecords, Record
from supervisor.narrative.standing import standing
from supervisor.narrative.told import Told
from supervisor.ports import Storage
from supervisor.protocol.reading import UnreadableError, parse_object

LAST = 100
"""Attempts whose records are in summary.json."""
_LARGEST = 1 << 30
"""Bytes of attempts.jsonl: some hundred thousand attempts."""


class Summary:
    """Writes the records of the current phase, which follow from the events alone."""

    def __init__(
        self,
        storage: Storage,
        plans: Sequence[PhasePlan],
        policy: RestartPolicy,
        on_error: Tell,
        *,
        last: int = LAST,
    ) -> None:
        """`last` attempts are kept in summary.json."""
        self._storage = storage
        self._plans = plans
        self._policy = policy
        self._on_error = on_error
        self._records = AttemptRecords(last)
        self._older = _Older(storage, None)
        self._broken: set[str] = set()
        """The files that could not be written the last time."""
        self.view = self._records.view
        self.restore = self._records.restore

    def replay(self, earlier: Iterable[Told]) -> None:
        """Take in what earlier supervisors told."""
        for each in earlier:
            self._take(each)

    def observe(self, told: Told) -> None:
        """See `observers.Rendering`."""
        directory = told.after.directory
        if self._take(told) and directory is not None:
            self._try(ATTEMPTS, self._write_older)
            data = json.dumps(self._body(told), indent=2).encode() + b"\n"
            path = f"{directory}/summary.json"
            self._try("summary.json", lambda: self._storage.replace(path, data))

    def _take(self, told: Told) -> bool:
        """Update the records; whether anything changed."""
        wall = told.wall.isoformat(timespec="milliseconds")
        num_devices = self._plan(told).num_devices
        taken = [self._records.take(line, wall, num_devices) for line in told.lines]
        return any(taken)

    def _plan(self, told: Told) -> PhasePlan:
        return self._plans[min(told.after.phase, len(self._plans) - 1)]

    def _body(self, told: Told) -> dict[str, Any]:
        now, plan = standing(told.after, self._policy), self._plan(told)
        return {
            "job": now.job,
            "phase": plan.name,
            "status": now.status,
            "exit_code": now.exit_code,
            "max_steps": plan.max_steps,
            "highest_committed_step": now.highest_committed,
            "restarts_used": now.restarts,
            "preemptions_used": now.preemptions,
            "restarts_in_all": now.restarts_in_all,
            **self._records.body(),
        }

    def _write_older(self) -> None:
        directory = self._records.directory
        path = f"{directory}/{ATTEMPTS}" if directory is not None else None
        if path != self._older.path:
            self._older = _Older(self._storage, path)
        self._older.write(self._records.older)

    def _try(self, name: str, write: Callable[[], None]) -> None:
        """A file for people is not worth a job: what goes wrong with it is told once."""
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


class _Older:
    """The file of the records that summary.json has no room for."""

    def __init__(self, storage: Storage, path: str | None) -> None:
        """`path` is None where there is no phase whose file it could be."""
        self._storage = storage
        self.path = path
        self._next: bytes | None = None
        """What to write first, behind an earlier supervisor's last line; None: it was not read."""

    def write(self, records: list[Record]) -> None:
        """Have all of `records` in the file, and take out those that are.

        Raises:
            OSError: they cannot be written; it is tried again the next time.
        """
        if not records or self.path is None:
            return
        try:
            if self._next is None:
                self._next = self._leave_out_what_is_there(self.path, records)
            if records:
                lines = b"".join(map(_line, records))
                self._storage.append(self.path, self._next + lines)
                self._next = b""
                records.clear()
        except OSError:
            del records[:-LAST]  # the next supervisor finds in the journal what is missing
            raise

    def _leave_out_what_is_there(self, path: str, records: list[Record]) -> bytes:
        """See `_next`."""
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
