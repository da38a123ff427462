"""The record of the processes that a supervisor has started: what the next one may kill.

`processes.jsonl` in model_dir. Its first line says who wrote it; each of the others is a process
with its session and start time. A worker writes its own between fork and exec, so that none is
missed; what it starts is written from time to time. Lines have one length and are written over
blank ones: the room for them is taken before anything is started, so that a full disk ends no job.
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
"""Blank lines to begin with, and of each extension: a block of the disk."""
_LARGEST = 1 << 19
"""Bytes up to which processes are added that a worker has started."""
_JOB = re.compile(r"[0-9a-f]{12}")
_INSTANCE = re.compile(r"[0-9a-f]{32}")


def is_job(text: str) -> bool:
    """Whether `text` is the id of a job."""
    return _JOB.fullmatch(text) is not None


def is_instance(text: str) -> bool:
    """Whether `text` is the id of a supervisor's run."""
    return _INSTANCE.fullmatch(text) is not None


Says = Callable[[int], bool]
"""Whether a process says, by its environment, that it is of the run."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is on record of a process: by its pid and start it is told from all others."""

    started: int
    session: int


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """Whose processes they are."""

    job: str
    instance: str
    supervisor: Identity
    folder: str
    """`device:inode` of the model_dir: a copy of it is another job's."""
    cgroup: str | None = None
    """Where the processes are, if they have cgroups."""

    @property
    def run(self) -> str:
        """What a lineage calls the supervisor's run."""
        return f"{self.job}@{self.instance}"

    @property
    def cgroup_name(self) -> str:
        """The last part of `cgroup`."""
        return cgroup_name(self.job, self.instance)

    def to_bytes(self) -> bytes:
        """The first line, with the blank ones that follow it."""
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
    """What tells a model_dir from its copies: `device:inode`."""
    status = model_dir.stat()
    return f"{status.st_dev}:{status.st_ino}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a record says."""

    origin: RecordOrigin
    processes: Mapping[int, Entry] = field(default_factory=dict)
    """By their pids."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Recorded:
        """The inverse of what is written; a line that is damaged is left out.

        Raises:
            ValueError: nobody can say whose it is.
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

    def proves(self, pid: int, seen: tree.Stat, says: Says) -> bool:
        """See `proven`."""
        return proven(self.processes, pid, seen, says)

    def may_be(self, pid: int, seen: tree.Stat) -> bool:
        """See `may_be`."""
        return may_be(self.processes, pid, seen)


def proven(processes: Mapping[int, Entry], pid: int, seen: tree.Stat, says: Says) -> bool:
    """Whether a process is of the run that has these on record.

    It is if itself or the leader of its session is: pid and start time name a process. Where the
    leader is gone, the number may be another session's by now. Then what began after a process of
    that session is of the run if it also `says` so.
    """
    leader = seen if pid == seen.session else tree.stat(seen.session)
    if _is_on_record(processes, pid, seen):
        return True
    if leader is not None:
        return _is_on_record(processes, seen.session, leader)
    return may_be(processes, pid, seen) and says(pid)


def may_be(processes: Mapping[int, Entry], pid: int, seen: tree.Stat) -> bool:
    """Whether a process is in a session of a number that is on record, and began later, while the
    leader, by which the session would be known, is gone."""
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
        self, path: Path, origin: RecordOrigin, replace: Callable[[bytes], None], says: Says
    ) -> None:
        """`replace` writes the whole file `path`, durably; what is of this run `says` so.

        Raises:
            OSError: it cannot be written.
        """
        self.path = path
        self.says = says
        self._origin = origin
        self._replace = replace
        self._first = origin.to_bytes()
        self._end = len(self._first)
        self._free = list(range(self._end - LINE * _LINES, self._end, LINE))
        self._places: dict[int, int] = {}
        """Where the line of each process is."""
        self.processes: dict[int, Entry] = {}
        self._forgettable: set[int] = set()
        """The processes that the last look did not find."""
        replace(self._first)
        self.descriptor = self._opened()

    def place(self) -> int:
        """Where the next process is to be written.

        Raises:
            OSError: there is no room for it.
        """
        if not self._free:
            os.pwrite(self.descriptor, _BLANK * _LINES, self._end)
            self._free += range(self._end, self._end + LINE * _LINES, LINE)
            self._end += LINE * _LINES
        return self._free.pop()

    def written(self, place: int, pid: int, entry: Entry) -> None:
        """A process was written there.

        Raises:
            OSError: an earlier one of the same number cannot be removed.
        """
        earlier = self._places.get(pid)  # another process, whose number is free again
        self._places[pid] = place
        self.processes[pid] = entry
        if earlier is not None:
            self.give_back(earlier)

    def give_back(self, place: int) -> None:
        """Return an unused slot.

        Raises:
            OSError: what may have been written there cannot be removed.
        """
        self._free.append(place)
        os.pwrite(self.descriptor, _BLANK, place)

    def add(self, pid: int, entry: Entry) -> None:
        """Write down a process that one of the job has begun by itself.

        Raises:
            OSError: it cannot be written.
        """
        if self._end > _LARGEST and not self._free:
            raise OSError(EFBIG, os.strerror(EFBIG))  # the next start reads no more
        place = self.place()
        os.pwrite(self.descriptor, _line(pid, entry), place)
        self.written(place, pid, entry)

    def note(self, below: Mapping[int, tree.Stat]) -> None:
        """These are all processes of the job, as far as one look finds them.

        Raises:
            OSError: it cannot be written.
        """
        for pid, seen in below.items():
            entry = Entry(seen.started, seen.session)
            if self.processes.get(pid) != entry:
                self.add(pid, entry)
        # The kernel's list may lack one: it is forgotten only if two looks do not find it.
        missing = self.processes.keys() - below.keys()
        self.forget(missing & self._forgettable)
        self._forgettable = missing

    def forget(self, pids: Iterable[int]) -> None:
        """These are gone.

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
        """Write the file again where it was removed, replaced or cut off; whether it was.

        Raises:
            OSError: it cannot be written.
        """
        try:
            if folder(self.path.parent) != self._origin.folder:
                return False  # nor is the job there any more, as others notice
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
        """Let go of the file."""
        os.close(self.descriptor)

    def _opened(self) -> int:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.fchmod(descriptor, 0o600)
        return descriptor
