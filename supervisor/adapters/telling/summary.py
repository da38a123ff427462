"""What became of each attempt of a phase, for tools and for people with jq.

summary.json holds counts and the records of the last attempts. It is written anew at each change,
so what is older goes to attempts.jsonl beside it, one line each, once its attempt is long over.
Which records are there is read from the file itself: a supervisor that is killed between two writes
leaves none out and writes none twice, and a line that was torn becomes one that no reader parses.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from enum import IntEnum
from typing import Any

from supervisor.config.plan import PhasePlan
from supervisor.core.decisions import FinishJob, TellLivelock, TellRecovery
from supervisor.core.doing import Killing
from supervisor.core.events import (
    LaunchFailed,
    PhaseBegun,
    WorkersGone,
    WorkersStarted,
)
from supervisor.core.state import JobState
from supervisor.files.segments import ATTEMPTS
from supervisor.history.encoding import EncodingError, decode, encode
from supervisor.host.notice import Notice, Tell
from supervisor.narrative.ends import End, end_of
from supervisor.ports import Storage, Transition
from supervisor.protocol.reading import UnreadableError, parse_object

LAST = 100
"""Attempts whose records are in summary.json."""
_LARGEST = 1 << 30
"""Bytes of attempts.jsonl: some hundred thousand attempts."""


class _View(IntEnum):
    """The form of `Summary.view`; another one is read from the archived journal instead."""

    FORMAT = 1


class Summary:
    """Keeps the records of the current phase. Follows from the transitions alone."""

    def __init__(
        self,
        storage: Storage,
        plans: Sequence[PhasePlan],
        on_error: Tell,
        *,
        last: int = LAST,
    ) -> None:
        """`last` attempts are kept in summary.json."""
        self._storage = storage
        self._plans = plans
        self._on_error = on_error
        self._last = last
        self._broken: set[str] = set()
        """The files that could not be written the last time."""
        self._begin(None)

    def _begin(self, directory: str | None) -> None:
        """Begin with the attempts of the phase in `directory`; None: none has begun."""
        self._directory = directory
        path = f"{directory}/{ATTEMPTS}" if directory is not None else None
        self._older = _Older(self._storage, path)
        self._ended: Counter[str] = Counter()
        self._attempts: list[dict[str, Any]] = []
        self._livelock: TellLivelock | None = None
        """The last one that was told."""

    def replay(self, transitions: Iterable[Transition]) -> None:
        """Take in the transitions of earlier supervisors."""
        for transition in transitions:
            self._take(transition)

    def view(self) -> dict[str, Any]:
        """All that it keeps, as JSON, for `restore`."""
        return {
            "v": _View.FORMAT,
            "directory": self._directory,
            "ended": self._ended,
            "attempts": self._attempts,
            "livelock": encode(self._livelock, TellLivelock | None),
            "waiting": self._older.waiting,
        }

    def restore(self, view: object) -> bool:
        """Take up a view of an earlier supervisor's; False: it is none, and nothing has changed."""
        match view:
            case {
                "v": _View.FORMAT,
                "directory": str() | None as directory,
                "ended": dict(ended),
                "attempts": list(attempts),
                "livelock": livelock,
                "waiting": list(waiting),
            } if all(map(_is_record, [*attempts, *waiting])) and _are_counts(ended):
                try:
                    last = decode(livelock, TellLivelock | None)
                except EncodingError:
                    return False
            case _:
                return False
        self._begin(directory)
        self._ended, self._attempts, self._livelock = Counter(ended), list(attempts), last
        for record in waiting:
            self._older.add(record)
        return True

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        directory = transition.after.directory
        if self._take(transition) and directory is not None:
            self._try(ATTEMPTS, self._older.write)
            data = json.dumps(self._body(transition.after), indent=2).encode() + b"\n"
            path = f"{directory}/summary.json"
            self._try("summary.json", lambda: self._storage.replace(path, data))

    def _body(self, state: JobState) -> dict[str, Any]:
        counts = self._ended + Counter(map(_status, self._attempts))
        return {
            **_job(state, self._plans),
            "livelock": _livelock(self._livelock),
            "num_attempts": counts.total(),
            "num_by_status": dict(sorted(counts.items())),
            "attempts": self._attempts,
        }

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

    def _take(self, transition: Transition) -> bool:
        """Update the records; whether anything changed."""
        told = [d for d in transition.decisions if isinstance(d, TellRecovery)]
        for recovery in told:
            self._record(recovery.attempt)["recovery"] = _recovery(recovery)
        self._livelock = next(
            (d for d in transition.decisions if isinstance(d, TellLivelock)), self._livelock
        )
        changed = self._take_event(transition) or bool(told)
        return self._take_end(transition) or changed

    def _take_event(self, transition: Transition) -> bool:
        wall = transition.wall.isoformat(timespec="milliseconds")
        match transition.event:
            case PhaseBegun() if transition.after.directory != transition.before.directory:
                self._begin(transition.after.directory)
            case WorkersStarted(_, attempt, pids):
                placement = transition.after.ladder.placement
                devices = self._plans[transition.after.phase].num_devices
                self._add(
                    {
                        "attempt": attempt,
                        "status": "RUNNING",
                        "started": wall,
                        "num_devices": placement.num_devices if placement else devices,
                        "pids": list(pids),
                    }
                )
            case WorkersGone() as event if isinstance(transition.before.doing, Killing):
                self._end(event.attempt, wall, _outcome(event, transition))
            case LaunchFailed(_, attempt):
                self._add({"attempt": attempt, "started": wall})
                failure = _failure(transition.after)
                self._end(attempt, wall, {"status": "FAILED", "failure": failure})
            case _:
                return False
        return True

    def _take_end(self, transition: Transition) -> bool:
        """Whether the job ends. Only then is known what to do about the failure that it ends
        with, and its attempt may be over for a while: devices were looked at meanwhile."""
        if not any(isinstance(decision, FinishJob) for decision in transition.decisions):
            return False
        if self._attempts and self._attempts[-1].get("failure") is not None:
            self._attempts[-1]["failure"] = _failure(transition.after)
        return True

    def _end(self, attempt: int, wall: str, outcome: dict[str, Any]) -> None:
        self._record(attempt).update({"ended": wall, **outcome})

    def _record(self, attempt: int) -> dict[str, Any]:
        if not self._attempts or self._attempts[-1]["attempt"] != attempt:
            self._add({"attempt": attempt})  # its WorkersStarted was never journalled
        return self._attempts[-1]

    def _add(self, record: dict[str, Any]) -> None:
        self._attempts.append(record)
        if len(self._attempts) > self._last:
            oldest = self._attempts.pop(0)
            self._ended[_status(oldest)] += 1
            self._older.add(oldest)


class _Older:
    """The file of the records that summary.json has no room for."""

    def __init__(self, storage: Storage, path: str | None) -> None:
        """`path` is None where there is no phase whose file it could be."""
        self._storage = storage
        self._path = path
        self._waiting: dict[int, bytes] = {}
        """By the number of its attempt: lines that may not be in the file yet."""
        self._next: bytes | None = None
        """What to write first, behind an earlier supervisor's last line; None: it was not read."""

    def add(self, record: dict[str, Any]) -> None:
        """The attempt of `record` is long over."""
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        self._waiting[record["attempt"]] = line

    @property
    def waiting(self) -> list[dict[str, Any]]:
        """The records that may not be in the file yet."""
        return [parse_object(line, ATTEMPTS) for line in self._waiting.values()]

    def write(self) -> None:
        """Have all of it in the file.

        Raises:
            OSError: it cannot be; it is tried again the next time.
        """
        path = self._path
        if not self._waiting or path is None:
            return
        try:
            if self._next is None:
                self._next = self._leave_out_what_is_there(path)
            if self._waiting:
                lines = b"".join(self._waiting.values())
                self._storage.append(path, self._next + lines)
                self._next = b""
                self._waiting.clear()
        except OSError:
            for attempt in list(self._waiting)[:-LAST]:
                del self._waiting[
                    attempt
                ]  # the next supervisor finds in the journal what is missing
            raise

    def _leave_out_what_is_there(self, path: str) -> bytes:
        """See `_next`."""
        try:
            data = self._storage.read(path, _LARGEST)
        except FileNotFoundError:
            return b""
        for line in data.splitlines():
            try:
                attempt = parse_object(line, path).get("attempt")
            except UnreadableError:
                continue
            if isinstance(attempt, int):
                self._waiting.pop(attempt, None)
        return b"" if data.endswith(b"\n") or not data else b"\n"


def _is_record(body: object) -> bool:
    return isinstance(body, dict) and type(body.get("attempt")) is int


def _are_counts(body: dict[Any, Any]) -> bool:
    return all(type(count) is int and count >= 0 for count in body.values())


def _status(record: dict[str, Any]) -> str:
    return str(record.get("status", "UNKNOWN"))


def _job(state: JobState, plans: Sequence[PhasePlan]) -> dict[str, Any]:
    plan = plans[state.phase]
    return {
        "job": state.job,
        "phase": plan.name,
        "status": state.status,
        "exit_code": state.exit_code,
        "max_steps": plan.max_steps,
        "highest_committed_step": state.budget.highest,
        "restarts_used": state.budget.restarts,
        "preemptions_used": state.budget.preemptions,
        "restarts_in_all": state.budget.total,
    }


def _livelock(told: TellLivelock | None) -> dict[str, Any] | None:
    if told is None:
        return None
    return {
        "failure": told.failure,
        "times": told.times,
        "seconds": round(told.seconds, 4),
        "goodput": round(told.goodput, 4),
    }


def _recovery(told: TellRecovery) -> dict[str, Any]:
    return {
        "seconds": round(told.seconds, 4),
        "parts": {part: round(seconds, 4) for part, seconds in told.parts.items()},
        "lost_steps": told.lost,
        "first_completed_step": told.step,
    }


def _outcome(event: WorkersGone, transition: Transition) -> dict[str, Any]:
    end = end_of(transition, event)
    start = event.resumed_from if event.starting_step is None else event.starting_step
    return {
        "status": end,
        "starting_step": start,
        "from_snapshot": event.from_snapshot,
        "ending_step": event.step,
        "steps_progressed": max(0, event.step - (start or 0)) if event.step is not None else 0,
        "newest_committed_step": event.committed,
        "failure": _failure(transition.after) if end is End.FAILED else None,
        **({"output_ends_in": event.doubt} if event.doubt is not None else {}),
    }


def _failure(state: JobState) -> dict[str, Any] | None:
    """The last failure; `certain` as people understand it: false of what is not FATAL."""
    failure = state.last_failure
    return {**asdict(failure), "certain": failure.is_certain} if failure is not None else None
