"""The record of the processes that a supervisor has started: what the next one may kill.

It is `processes.jsonl` in model_dir. The first line names the supervisor's run; every other line is
one process with its session and start time. A worker's line is written between fork and exec, so
none is missed; the processes that a worker starts are added from time to time. All lines have the
same length and replace blank lines. The blank lines are allocated before anything is started, so a
full disk never ends a job.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from errno import EFBIG
from pathlib import Path
from typing import Any

from supervisor.host import tree
from supervisor.host.birth import LINE, line
from supervisor.host.identity import Identity

NAME = "processes.jsonl"
FORMAT = 1
_BLANK = b" " * (LINE - 1) + b"\n"
_LINES = 56
"""Blank lines in a new file, and added by each extension: one disk block."""
_LARGEST = 1 << 19
"""Size in bytes beyond which processes that a worker has started are no longer added."""
_JOB = re.compile(r"[0-9a-f]{12}")
_INSTANCE = re.compile(r"[0-9a-f]{32}")


def is_job(text: str) -> bool:
    """Whether `text` is the id of a job."""
    return _JOB.fullmatch(text) is not None


def is_instance(text: str) -> bool:
    """Whether `text` is the id of a supervisor's run."""
    return _INSTANCE.fullmatch(text) is not None


NamesRun = Callable[[int], bool]
"""Whether the environment of the process with this pid names the run (variable LINEAGE)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded process. Pid and start time together identify it."""

    started: int
    session: int


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """The supervisor's run that the recorded processes belong to."""

    job: str
    instance: str
    supervisor: Identity
    folder: str
    """`device:inode` of the model_dir: a copied model_dir belongs to another job."""
    cgroup: str | None = None
    """The cgroup that holds the processes; None: they have none."""

    @property
    def run(self) -> str:
        """`job@instance`: the run as the variable LINEAGE names it."""
        return f"{self.job}@{self.instance}"

    @property
    def cgroup_name(self) -> str:
        """The last part of `cgroup`."""
        return cgroup_name(self.job, self.instance)

    def to_bytes(self) -> bytes:
        """Encode the first line and the blank lines that follow it."""
        told = {
            "v": FORMAT,
            "job": self.job,
            "instance": self.instance,
            "supervisor": self.supervisor.to_json(),
            "folder": self.folder,
            "cgroup": self.cgroup,
        }
        text = json.dumps(told).encode()
        return text.ljust(-(-(len(text) + 1) // LINE) * LINE - 1) + b"\n" + _BLANK * _LINES


def cgroup_name(job: str, instance: str) -> str:
    """The name of a supervisor's cgroup."""
    return f"supervise-{job}-{instance}"


def folder(model_dir: Path) -> str:
    """Return `device:inode`, which differs between a model_dir and its copies."""
    status = model_dir.stat()
    return f"{status.st_dev}:{status.st_ino}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """The content of a record."""

    origin: RecordOrigin
    processes: Mapping[int, Entry] = field(default_factory=dict)
    """By their pids."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Recorded:
        """Parse a record; a damaged line is left out.

        Raises:
            ValueError: the first line is damaged, so the owner is unknown.
        """
        first, *rest = data.split(b"\n")
        try:
            told = json.loads(first)
            origin = _origin(told) if told["v"] == FORMAT else None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"its first line is damaged ({type(error).__name__})") from error
        if origin is None:
            raise ValueError(f"it was written by another version: its format is not {FORMAT}")
        if not is_job(origin.job) or not is_instance(origin.instance):
            raise ValueError("its first line names no job and run of ours")
        return cls(origin, dict(filter(None, map(_entry, rest))))

    def proves(self, pid: int, seen: tree.Stat, environment_names_run: NamesRun) -> bool:
        """See `proven`."""
        return proven(self.processes, pid, seen, environment_names_run)

    def may_be(self, pid: int, seen: tree.Stat) -> bool:
        """See `may_be`."""
        return may_be(self.processes, pid, seen)


def proven(
    processes: Mapping[int, Entry], pid: int, seen: tree.Stat, environment_names_run: NamesRun
) -> bool:
    """Whether the process `pid` provably belongs to the run that recorded `processes`.

    It does if it, or the leader of its session, is on record with the same start time. If the
    leader is gone, the session's number may have been used again. Then the process belongs to the
    run if it started after a recorded process of that session and its environment names the run.
    """
    leader = seen if pid == seen.session else tree.stat(seen.session)
    if _is_on_record(processes, pid, seen):
        return True
    if leader is not None:
        return _is_on_record(processes, seen.session, leader)
    return may_be(processes, pid, seen) and environment_names_run(pid)


def may_be(processes: Mapping[int, Entry], pid: int, seen: tree.Stat) -> bool:
    """Whether the process `pid` may belong to the run, which its environment has to confirm: the
    number of its session is on record, the session's leader is gone, and the process began later
    than a recorded one of that session."""
    if tree.stat(seen.session) is not None:
        return False
    began = [one.started for one in processes.values() if one.session == seen.session]
    return bool(began) and seen.started >= min(began)


def _is_on_record(processes: Mapping[int, Entry], pid: int, seen: tree.Stat) -> bool:
    entry = processes.get(pid)
    return entry is not None and entry.started == seen.started


def _origin(told: dict[str, Any]) -> RecordOrigin:
    return RecordOrigin(
        str(told["job"]),
        str(told["instance"]),
        Identity.from_json(told["supervisor"]),
        str(told["folder"]),
        str(told["cgroup"]) if told["cgroup"] is not None else None,
    )


def _entry(text: bytes) -> tuple[int, Entry] | None:
    try:
        told: Any = json.loads(text) if text.strip() else {}
        session, started = told["session"], told["started"]
        pid = told.get("pid", session)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    numbers = type(session) is int and type(started) is int and type(pid) is int
    return (pid, Entry(started, session)) if numbers and min(session, pid) > 1 else None


def _line(pid: int, entry: Entry) -> bytes:
    if pid == entry.session:
        return line(pid, entry.started)
    text = b'{"session":%d,"started":%d,"pid":%d}' % (entry.session, entry.started, pid)
    return text.ljust(LINE - 1) + b"\n"


class ProcessRecord:
    """The record of this supervisor, open for writing."""

    def __init__(
        self,
        path: Path,
        origin: RecordOrigin,
        replace: Callable[[bytes], None],
        environment_names_run: NamesRun,
    ) -> None:
        """Create the file `path`; `replace` writes the whole file durably.

        Raises:
            OSError: it cannot be written.
        """
        self.path = path
        self.environment_names_run = environment_names_run
        self._origin = origin
        self._replace = replace
        self._first = origin.to_bytes()
        self._end = len(self._first)
        self._free = list(range(self._end - LINE * _LINES, self._end, LINE))
        self._places: dict[int, int] = {}
        """Offset of each process's line in the file, by pid."""
        self.processes: dict[int, Entry] = {}
        self._forgettable: set[int] = set()
        """Pids that the last scan did not find: a second miss removes them."""
        replace(self._first)
        self.descriptor = self._opened()

    def place(self) -> int:
        """Return the file offset for the next process's line, and reserve it.

        Raises:
            OSError: the disk has no room for more lines.
        """
        if not self._free:
            os.pwrite(self.descriptor, _BLANK * _LINES, self._end)
            self._free += range(self._end, self._end + LINE * _LINES, LINE)
            self._end += LINE * _LINES
        return self._free.pop()

    def written(self, place: int, pid: int, entry: Entry) -> None:
        """Register that the line of process `pid` was written at the offset `place`.

        Raises:
            OSError: the line of an earlier process with the same pid cannot be removed.
        """
        earlier = self._places.get(pid)  # of a process that has ended: its pid was used again
        self._places[pid] = place
        self.processes[pid] = entry
        if earlier is not None:
            self.give_back(earlier)

    def give_back(self, place: int) -> None:
        """Blank the line at the offset `place`, and make it available again.

        Raises:
            OSError: the line cannot be overwritten.
        """
        self._free.append(place)
        os.pwrite(self.descriptor, _BLANK, place)

    def add(self, pid: int, entry: Entry) -> None:
        """Record a process that was started by a process of the job, not by the guard.

        Raises:
            OSError: it cannot be written.
        """
        if self._end > _LARGEST and not self._free:
            raise OSError(EFBIG, os.strerror(EFBIG))  # the next supervisor reads no larger file
        place = self.place()
        os.pwrite(self.descriptor, _line(pid, entry), place)
        self.written(place, pid, entry)

    def sync(self, below: Mapping[int, tree.Stat]) -> None:
        """Update the record with `below`, all processes of the job that one scan found, by pid.

        Raises:
            OSError: it cannot be written.
        """
        for pid, seen in below.items():
            entry = Entry(seen.started, seen.session)
            if self.processes.get(pid) != entry:
                self.add(pid, entry)
        # The kernel's list of children may lack one: only two misses in a row remove a process.
        missing = self.processes.keys() - below.keys()
        self.forget(missing & self._forgettable)
        self._forgettable = missing

    def forget(self, pids: Iterable[int]) -> None:
        """Remove processes that have ended.

        Raises:
            OSError: it cannot be written.
        """
        for pid in pids:
            del self.processes[pid]
            self.give_back(self._places.pop(pid))

    def keep(self, sessions: Collection[int]) -> None:
        """Forget all processes but those in these sessions.

        Raises:
            OSError: it cannot be written.
        """
        self.forget([pid for pid, entry in self.processes.items() if entry.session not in sessions])

    def restore(self) -> bool:
        """Write the file again if it was removed, replaced or truncated; returns whether it was.

        Raises:
            OSError: it cannot be written.
        """
        try:
            if folder(self.path.parent) != self._origin.folder:
                return False  # model_dir itself was replaced, which the lock reports
            there = self.path.lstat()
            same = os.path.samestat(there, os.fstat(self.descriptor))
            if same and there.st_size >= self._end:
                return False
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                return False
        data = bytearray(self._first.ljust(self._end))
        for place in range(len(self._first), self._end, LINE):
            data[place : place + LINE] = _BLANK
        for pid, place in self._places.items():
            data[place : place + LINE] = _line(pid, self.processes[pid])
        self._replace(bytes(data))
        descriptor = self._opened()
        os.dup2(descriptor, self.descriptor, inheritable=False)
        os.close(descriptor)
        return True

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def _opened(self) -> int:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.fchmod(descriptor, 0o600)
        return descriptor
