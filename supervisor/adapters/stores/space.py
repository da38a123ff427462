"""Deletes old files of a job's attempts, to stay within the disk and the configured limits.

A full disk must not end a job that could go on, and files that nobody reads any more should not
fill a disk. On a full disk only the outputs of ended attempts are deleted. The config's limits also
apply to their records (failure records, stacks) and to compiled steps. The oldest goes first. The
journal and the checkpoints are never deleted. No link is followed: see `protocol.removal`.

Only the phase folders that are in the journal belong to the job. A person may keep a copy of
another phase in model_dir, and the folders of an earlier job stay when its journal is moved away.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from supervisor.config.quantities import size_text
from supervisor.config.schema import Limits
from supervisor.core import cache_trust
from supervisor.core.events import LaunchFailed, WorkersGone
from supervisor.core.retention import Kept, excess, limit_told
from supervisor.files import writing
from supervisor.files.attempts import ATTEMPTS_FOLDER, attempts_in_order
from supervisor.history.past import Past
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Storage, Transition
from supervisor.protocol import removal
from supervisor.protocol.removal import Place

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PREFETCH = re.compile(r"prefetch\d+")
_LOG_OF_HELPER = re.compile(r"standby(?:-.+)?\.log|rank\d+\.log")
MAX_LOG = 64 << 20
"""The largest log of a standby or a prefetch, in bytes: the same as for a worker's output."""
_TRIAL = ".trial"
"""Suffix of a mark of a few bytes: the compiled step of that name is on trial until its first call
has completed. The mark itself is no compiled step."""

_ROOM = 1 << 30
"""Bytes: a disk with so much free space is not full because of what we can delete."""
T = TypeVar("T")


def free_bytes(path: Path) -> int | None:
    """Returns the free bytes on the disk of `path`; None if the system does not say."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The folder of an attempt."""

    phase: str
    number: int
    path: Path

    def __str__(self) -> str:
        return f"{self.number} of {self.phase}"


class Space:
    """Deletes what can be deleted in a model_dir."""

    def __init__(self, model_dir: Path, tell: Tell, recorded: Callable[[], Sequence[str]]) -> None:
        """`tell` may be called from another thread. `recorded` reads the folders of the phases from
        the journal, oldest first: the disk may be full before the job's history is known."""
        self._model_dir = model_dir
        self._recorded = recorded
        self._phases: tuple[str, ...] | None = None
        self._tell = tell
        self._last_failed: int | None = None
        self._without_output: set[Path] = set()
        self._refused: set[Path] = set()
        self.in_use: Callable[[], Path | None] = lambda: None
        """Returns the directory of the running attempt, whose files are kept; None if none runs."""

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`. Notes the phases and the last failed attempt: no limit applies to
        what that one left."""
        folder, phases = transition.after.directory, self._phases or ()
        if folder is not None and folder not in phases:
            self._phases = (*phases, folder)
        event = transition.event
        if isinstance(event, WorkersGone | LaunchFailed) and event.failure is not None:
            self._last_failed = event.attempt

    def recall(self, past: Past) -> None:
        """Take over the phases and the last failed attempt from the job's history."""
        self._phases, self._last_failed = past.directories, past.last_failed

    @property
    def is_short(self) -> bool:
        """True if the disk of model_dir may be the full one, rather than another disk."""
        free = free_bytes(self._model_dir)
        return free is None or free < _ROOM

    def make_room(self) -> None:
        """Delete the output of all ended attempts but the newest and the last failed one. If there
        is no such output, delete that of one of these two."""
        if self._delete_oldest(sparing=True):
            while self._delete_oldest(sparing=True):
                pass
        else:
            self._delete_oldest(sparing=False)

    def delete_oldest_output(self) -> bool:
        """Delete the output of the oldest attempt that has any; the newest and the last failed
        attempt come last. False if there is none to delete."""
        return self._delete_oldest(sparing=True) or self._delete_oldest(sparing=False)

    def _delete_oldest(self, *, sparing: bool) -> bool:
        in_use, there = self.in_use(), list(self._attempts())
        for attempt in there:
            if attempt.path == in_use or attempt.path in self._without_output:
                continue
            if sparing and self._is_newest_or_last_failed(attempt, there):
                continue
            freed = self._delete(Place.OUTPUT, self._sizes(attempt.path, Place.OUTPUT))
            self._without_output.add(attempt.path)
            if freed:
                self._tell(
                    Notice(
                        "outputs-deleted",
                        f"the disk is full: deleted the output of attempt {attempt}: {freed} B",
                        attempt=attempt.number,
                        directory=attempt.phase,
                        bytes=freed,
                    )
                )
                return True
        return False

    def _is_newest_or_last_failed(self, attempt: _Attempt, there: Sequence[_Attempt]) -> bool:
        """True for the newest and the last failed attempt. The newest one may have just ended, and
        its failure may not be judged yet."""
        return attempt == there[-1] or attempt.number == self._last_failed

    def keep_within(self, limits: Limits) -> None:
        """Delete the oldest files where they take more than `limits`; empty too large logs."""
        self._of_attempts("outputs", Place.OUTPUT, limits.outputs)
        self._of_attempts("records", Place.RECORD, limits.records)
        self._executables(limits.executables)
        self._empty_large_logs()

    def _of_attempts(self, what: str, place: Place, limit: int) -> None:
        there = list(self._attempts())
        found: dict[str, tuple[_Attempt, dict[Path, int]]] = {}
        kept = []
        for order, attempt in enumerate(there):
            sizes = self._sizes(attempt.path, place)
            stays = self._is_newest_or_last_failed(attempt, there)
            found[str(attempt.path)] = attempt, sizes
            kept.append(Kept(str(attempt.path), sum(sizes.values()), order, stays))
        deleted = [found[one.name] for one in excess(kept, limit)]
        freed = sum(self._delete(place, sizes) for _, sizes in deleted)
        if freed:
            (first, _), (last, _) = deleted[0], deleted[-1]
            which = f"attempt {first}"
            if len(deleted) > 1:
                begin = first.number if first.phase == last.phase else first
                which = f"{len(deleted)} attempts, {begin} to {last}"
            self._tell(
                Notice(
                    "limit-applied",
                    limit_told(f"the {what} of {which}", freed, what, limit),
                    detail=what,
                    bytes=freed,
                )
            )

    def _executables(self, limit: int) -> None:
        folder = self._model_dir
        for name in (cache_trust.FOLDER, "executables"):
            if name not in self._folders(folder):
                return
            folder /= name
        status = self._files(folder, self._claimed_by(Place.EXECUTABLE))
        kept = [
            Kept(str(path), one.st_size, one.st_mtime)
            for path, one in status.items()
            if path.suffix != _TRIAL
        ]
        deleted = {Path(one.name): one.size for one in excess(kept, limit)}
        if freed := self._delete(Place.EXECUTABLE, deleted):
            self._tell(
                Notice(
                    "limit-applied",
                    limit_told("compiled steps", freed, "executables", limit),
                    detail="executables",
                    bytes=freed,
                )
            )

    def _empty_large_logs(self) -> None:
        """Empty logs larger than `MAX_LOG`. Their writers may live long, and append to them."""
        for folder in self._attempt_folders():
            logs = self._files(folder, _is_log_of_helper)
            for name in self._folders(folder):
                if _PREFETCH.fullmatch(name):
                    logs |= self._files(folder / name, _is_log_of_helper)
            for path, status in logs.items():
                if status.st_size > MAX_LOG:
                    try:
                        below = self._model_dir
                        writing.opened(path, new=True, create=False, below=below).close()
                        size = size_text(status.st_size)
                        self._tell(
                            Notice(
                                "file-emptied",
                                f"emptied {path}, which had {size}: what wrote it has a fault",
                                place=str(path),
                            )
                        )
                    except OSError as error:
                        self._tell_once(path, f"cannot be emptied: {error.strerror}")

    def _delete(self, place: Place, sizes: Mapping[Path, int]) -> int:
        """Delete files. Returns the bytes freed. Reports a file that cannot be deleted once."""
        freed = 0
        for path, size in sizes.items():
            try:
                freed += size * removal.remove_file(place, path, below=self._model_dir)
            except OSError as error:
                self._tell_once(path, f"cannot be deleted to make room: {error.strerror}")
        return freed

    def _attempts(self) -> Iterator[_Attempt]:
        """Yields all attempts in the order in which they started."""
        for folder in self._attempt_folders():
            for name in attempts_in_order(self._folders(folder)):
                yield _Attempt(folder.parent.name, int(name), folder / name)

    def _attempt_folders(self) -> Iterator[Path]:
        """Yields each phase's folder of attempts, in the order in which the phases began."""
        if self._phases is None:
            self._phases = tuple(self._recorded())
        there = self._folders(self._model_dir)
        for phase in self._phases:
            if phase in there and ATTEMPTS_FOLDER in self._folders(self._model_dir / phase):
                yield self._model_dir / phase / ATTEMPTS_FOLDER

    def _sizes(self, folder: Path, place: Place) -> dict[Path, int]:
        found = self._files(folder, self._claimed_by(place))
        return {path: one.st_size for path, one in found.items()}

    def _claimed_by(self, place: Place) -> Callable[[Path], bool]:
        return lambda path: place.claims(str(path.relative_to(self._model_dir)))

    def _files(self, folder: Path, is_wanted: Callable[[Path], bool]) -> dict[Path, os.stat_result]:
        """Returns the wanted regular files in `folder`; links are left out."""
        found = {}
        for one in self._entries(folder):
            path = Path(one.path)
            try:
                if is_wanted(path) and one.is_file(follow_symlinks=False):
                    found[path] = one.stat(follow_symlinks=False)
            except FileNotFoundError:
                pass  # a full output file is renamed
            except OSError as error:
                self._tell_once(path, f"cannot be looked at to make room: {error.strerror}")
        return found

    def _folders(self, folder: Path) -> list[str]:
        """Returns the names of the folders in `folder`; links are left out."""
        found = []
        for one in self._entries(folder):
            try:
                if one.is_dir(follow_symlinks=False):
                    found.append(one.name)
            except OSError as error:
                path = Path(one.path)
                self._tell_once(path, f"cannot be looked at to make room: {error.strerror}")
        return found

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                return list(found)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._tell_once(folder, f"cannot be searched to make room: {error.strerror}")
            return []

    def _tell_once(self, path: Path, text: str) -> None:
        if path not in self._refused:
            self._refused.add(path)
            self._tell(Notice("room-not-made", f"{path} {text}", place=str(path), reason=text))


def _is_log_of_helper(path: Path) -> bool:
    return _LOG_OF_HELPER.fullmatch(path.name) is not None


class RoomMakingStorage:
    """A storage that deletes old outputs and tries again if the disk is full."""

    def __init__(self, storage: Storage, space: Space) -> None:
        self._storage = storage
        self._space = space

    def read(self, path: str, limit: int) -> bytes:
        """See `ports.Storage`."""
        return self._storage.read(path, limit)

    def replace(self, path: str, data: bytes) -> None:
        """See `ports.Storage`."""
        self._with_room(lambda: self._storage.replace(path, data))

    def append(
        self, path: str, data: bytes, *, at: int | None = None, durable: bool = False
    ) -> None:
        """See `ports.Storage`."""
        self._with_room(lambda: self._storage.append(path, data, at=at, durable=durable))

    def make_directory(self, path: str, *, durable: bool = False) -> bool:
        """See `ports.Storage`."""
        return self._with_room(lambda: self._storage.make_directory(path, durable=durable))

    def names(self, path: str) -> list[str]:
        """See `ports.Storage`."""
        return self._storage.names(path)

    def local_path(self, path: str) -> Path:
        """See `ports.Storage`."""
        return self._storage.local_path(path)

    def _with_room(self, write: Callable[[], T]) -> T:
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in _FULL or not self._space.delete_oldest_output():
                    raise
