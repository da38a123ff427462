"""Records of a phase's attempts, for summary.json: a fold over the names and keys of log events.

Only log events make a record, so any reader of `--log-format json` can make the same records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from supervisor.narrative.event_line import Line

SUMMARY = "summary"
"""The name of the records' view in the journal."""
_UNKNOWN = "UNKNOWN"
"""The status of an attempt whose events were lost."""
Record = dict[str, Any]
"""The record of one attempt, as JSON."""


class _View(IntEnum):
    """The version of `AttemptRecords.view`. If a view has another version, the records are made
    again from the journal."""

    FORMAT = 2


class AttemptRecords:
    """The records of the attempts of the phase in `directory` (None: no phase has begun)."""

    def __init__(self, last: int) -> None:
        """`last` is the number of records that `attempts` keeps."""
        self._last = last
        self._begin(None)

    def _begin(self, directory: str | None) -> None:
        self.directory = directory
        self.attempts: list[Record] = []
        self.older: list[Record] = []
        """Records that no longer fit into `attempts`, until the owner of this object removes
        them."""
        self.livelock: Record | None = None
        """The last livelock in the log; None: there was none."""
        self._ended: Counter[str] = Counter()
        """The number of attempts by status, of those that are no longer in `attempts`."""

    def take(self, line: Line, wall: str, num_devices: int | None) -> bool:
        """Update the records with an event at the time `wall`; False: the event changes none.

        `num_devices` is the number of devices that the config gives the phase; it counts where the
        event has none.
        """
        keys = line.keys
        match line.event:
            case "phase-began":
                self._begin(str(keys["directory"]))
            case "workers-started":
                devices = keys["num_devices"] or num_devices
                began = {"status": "RUNNING", "started": wall, "num_devices": devices}
                self._of(keys).update({**began, "pids": keys["pids"]})
            case "launch-failed":
                self._of(keys).update({"started": wall, "ended": wall, **_without_attempt(keys)})
            case "attempt-ended":
                self._of(keys).update({"ended": wall, **_without_attempt(keys)})
            case "success-doubted":
                self._of(keys)["output_ends_in"] = keys["exception"]
            case "recovered":
                self._of(keys)["recovery"] = _recovery(keys)
            case "livelock":
                self.livelock = _livelock(keys)
            case "job-ended":
                self._end_with(keys["failure"])
            case _:
                return False
        return True

    def _add(self, record: Record) -> None:
        """Append the record of an attempt, after placeholders for those whose events are lost."""
        number = record["attempt"]
        unknown = range(self.attempts[-1]["attempt"] + 1 if self.attempts else number, number)
        if len(unknown) > self._last:
            self._ended[_UNKNOWN] += len(unknown) - self._last
        for each in unknown[-self._last :]:
            self._append({"attempt": each, "status": _UNKNOWN})
        self._append(record)

    def _append(self, record: Record) -> None:
        self.attempts.append(record)
        if len(self.attempts) > self._last:
            oldest = self.attempts.pop(0)
            self._ended[_status(oldest)] += 1
            self.older.append(oldest)

    def _of(self, keys: Mapping[str, Any]) -> Record:
        """Returns the record of the attempt that an event belongs to."""
        if not self.attempts or self.attempts[-1]["attempt"] != keys["attempt"]:
            self._add({"attempt": keys["attempt"]})  # its start was never journalled
        return self.attempts[-1]

    def _end_with(self, failure: object) -> None:
        """Replace the last attempt's failure by the one that the job ends with, which has the
        advice for the end. It is known only now, because devices may have been probed since the
        attempt ended."""
        if failure is not None and self.attempts and self.attempts[-1].get("failure") is not None:
            self.attempts[-1]["failure"] = failure

    def body(self) -> dict[str, Any]:
        """Returns the part of summary.json that is made of events."""
        counts = self._ended + Counter(map(_status, self.attempts))
        return {
            "livelock": self.livelock,
            "num_attempts": counts.total(),
            "num_by_status": dict(sorted(counts.items())),
            "attempts": self.attempts,
        }

    def view(self) -> dict[str, Any]:
        """Returns the whole state as JSON, for `restore`."""
        return {
            "v": _View.FORMAT,
            "directory": self.directory,
            "ended": self._ended,
            "attempts": self.attempts,
            "livelock": self.livelock,
            "older": self.older,
        }

    def restore(self, view: object) -> bool:
        """Take over an earlier supervisor's view; False: it is not valid, and nothing has
        changed."""
        match view:
            case {
                "v": _View.FORMAT,
                "directory": str() | None as directory,
                "ended": dict(ended),
                "attempts": list(attempts),
                "livelock": dict() | None as livelock,
                "older": list(older),
            } if all(map(_is_record, [*attempts, *older])) and _are_counts(ended):
                self._begin(directory)
                self._ended, self.livelock = Counter(ended), livelock
                self.attempts, self.older = list(attempts), list(older)
                return True
        return False


def _is_record(body: object) -> bool:
    return isinstance(body, dict) and type(body.get("attempt")) is int


def _are_counts(body: dict[Any, Any]) -> bool:
    return all(type(count) is int and count >= 0 for count in body.values())


def _status(record: Record) -> str:
    return str(record.get("status", _UNKNOWN))


def _without_attempt(keys: Mapping[str, Any]) -> Record:
    return {key: value for key, value in keys.items() if key != "attempt"}


def _livelock(keys: Mapping[str, Any]) -> Record:
    return {
        "failure": keys["root_cause"],
        "times": keys["times"],
        "seconds": round(keys["seconds"], 4),
        "goodput": round(keys["goodput"], 4),
    }


def _recovery(keys: Mapping[str, Any]) -> Record:
    return {
        "seconds": round(keys["seconds"], 4),
        "parts": {part: round(seconds, 4) for part, seconds in keys["parts"].items()},
        "lost_steps": keys["lost_steps"],
        "first_completed_step": keys["step"],
    }
