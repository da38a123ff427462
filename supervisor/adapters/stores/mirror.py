"""Copies the job's folder on this host to a bucket while the job runs.

One thread does this, so that nothing else has to wait for the bucket. It looks at the folder every
few seconds, and at once when it is woken; it copies the journal first. Files that only grow (the
journal, run.log, attempts.jsonl, metrics.jsonl) are written in segments (`files.segments`). Any
other file is written whole; a large one only if it has grown by half, or has not changed since the
last look. In the other direction only the requests of people are copied. If the bucket fails, the
thread tries again until it works. The lease, and the callers of `flush`, decide how long a job may
go on without the bucket.

Two things are not copied: checkpoints, which the trainer writes to the bucket itself, and compiled
programs, which are code (see `adapters.stores.shared_programs`).
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from supervisor.files.attempts import ATTEMPTS_FOLDER, attempts_in_order, is_phase_folder
from supervisor.files.segments import (
    ARCHIVE,
    JOURNAL,
    METRICS,
    PHASE_FILES,
    SUFFIX,
    Segment,
    next_segment,
)
from supervisor.host.notice import Notice, Tell
from supervisor.host.process_record import NAME as PROCESSES
from supervisor.ports import Objects, Storage
from supervisor.protocol import removal
from supervisor.protocol.reading import UnreadableError, open_file, read
from supervisor.protocol.removal import Place

_INTERVAL = 5.0
"""Seconds between two looks at the folder."""
_PATIENCE = 120.0
"""Seconds that `flush` waits: longer than the bucket takes to answer, with all tries."""
_LOOK = 0.2
_LARGEST = 1 << 28
"""The largest file to copy, in bytes; a larger one is not ours."""
_SMALL = 1 << 18
"""Bytes: a file up to this size is written again after each change. No request is larger."""
_NUM_CHANGING = 2
"""The number of attempts, and of phases, whose files may still change: the newest one, and the one
before it while the newest one starts."""

_REQUESTS = "requests"
_MAX_NAME = 200
"""Bytes; a file system allows 255, and a temporary name is longer than the file's."""
_ASK_INTERVAL = 30.0
"""Seconds between two looks for requests in the bucket."""

_Stamp = tuple[int, int]
"""Size and time of change (ns) of a file."""


def _nothing() -> None:
    pass


class Mirror:
    """The copy of a job's folder in the bucket."""

    def __init__(
        self,
        objects: Objects,
        folder: Path,
        epoch: int,
        tell: Tell,
        also: Callable[[], None] = _nothing,
    ) -> None:
        """`epoch` is that of our lease. `tell` and `also` are called from the mirror's thread;
        `also` copies other things to the bucket."""
        self._objects = objects
        self._folder = folder.resolve()
        self._epoch = epoch
        self._tell = tell
        self._streams: dict[str, _Stream] = {}
        self._written: dict[str, _Stamp] = {}
        self._seen: dict[str, _Stamp] = {}
        self._refused: set[str] = set()
        self._also = also
        self._asked = -math.inf
        self._error: OSError | None = None
        self._wanted = threading.Event()
        self._changed = threading.Condition()
        self._replaced = threading.Lock()
        """Held while a growing file is replaced, or read."""
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def begin(self) -> None:
        """Start the thread, which copies what the folder contains and each later change.

        From now on a growing file may be replaced only through `replace`.
        """
        self._thread.start()

    def wake(self) -> None:
        """Look at the folder at once: there is something new."""
        self._wanted.set()

    def replace(self, path: str, replace: Callable[[], None]) -> None:
        """Call `replace`, which replaces the growing file `path`; it is then written anew."""
        with self._replaced:
            replace()
            if (stream := self._streams.get(path)) is not None:
                self._streams[path] = _Stream(stream.generation + 1)

    def flush(self, path: str, give_up: Callable[[], bool], patience: float = _PATIENCE) -> None:
        """Wait until the bucket has all that the growing file `path` contains now.

        Raises:
            OSError: that took more than `patience` seconds, or `give_up` returned True.
        """
        size = (self._folder / path).stat().st_size
        end = time.monotonic() + patience
        self.wake()
        with self._changed:
            while self._end_of(path) < size:
                if time.monotonic() >= end or give_up():
                    why = _words(self._error) if self._error is not None else "no answer"
                    raise OSError(errno.EIO, f"{path} was not copied to the bucket: {why}")
                self._changed.wait(_LOOK)

    def close(self, patience: float = _PATIENCE) -> str | None:
        """Copy what is left, for at most `patience` seconds, and end the thread. Returns why the
        bucket does not have everything; None: it has."""
        if self._thread.ident is None:
            return None
        self._is_ending = True
        self.wake()
        self._thread.join(patience)
        if self._thread.is_alive():
            return "no answer"
        return None if self._error is None else _words(self._error)

    def archived(self) -> list[str]:
        """Returns the names of the archived segments in the bucket, also those of other hosts.
        Errors as `ports.Objects`."""
        return sorted(self._objects.list(ARCHIVE).objects)

    def read(self, path: str, limit: int) -> bytes:
        """Returns the content of an object. Errors as `ports.Objects`."""
        return self._objects.read(path, limit).data

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_ending:
            self._wanted.wait(_INTERVAL)
            self._wanted.clear()
            self._attempt_all()
        self._attempt_all()

    def _attempt_all(self) -> None:
        """Copy all that has changed. After an error the next look copies the rest."""
        try:
            for path in self._growing():
                self._copy_growth(path)
            for path in self._others():
                self._copy_whole(path)
            self._also()
            if time.monotonic() >= self._asked + _ASK_INTERVAL:
                self._fetch_requests()
                self._asked = time.monotonic()
        except OSError as error:
            if self._error is None:
                self._tell(
                    Notice(
                        "bucket-unwritable",
                        f"the bucket cannot be written, which is tried again: {_words(error)}",
                        reason=_words(error),
                    )
                )
            self._error = error
        else:
            if self._error is not None:
                self._tell(Notice("bucket-writable", "the bucket can be written again"))
            self._error = None

    def _copy_growth(self, path: str) -> None:
        file = self._folder / path
        with self._replaced:
            stream = self._streams.setdefault(path, _Stream())
            try:
                status = file.stat()
            except FileNotFoundError:
                return
            size = status.st_size
            if path == METRICS and not stream.continues_in(status):
                self._streams[path] = stream = _Stream(stream.generation + 1)
            stream.file = status.st_ino
            plan = next_segment(stream.segments, self._epoch, size, stream.generation)
            if plan is None:
                return
            segment, kept = plan
            with open_file(file, below=self._folder) as source:
                source.seek(segment.start)
                data = source.read(segment.size)
        if len(data) < segment.size:
            return  # the file was cut meanwhile: its writer will notice
        if path == JOURNAL and not stream.segments:
            for archived in self._below(ARCHIVE):  # the journal names them, so they come first
                self._copy_whole(archived)
        self._objects.write(f"{path}{SUFFIX}/{segment.name}", data)
        obsolete = stream.segments[len(kept) :]
        with self._changed:
            stream.segments = (*kept, segment)
            self._changed.notify_all()
        if not kept:
            self._forget_earlier(path, segment)
        for each in obsolete:
            self._forget(Place.SEGMENT, f"{path}{SUFFIX}/{each.name}")

    def _forget_earlier(self, path: str, whole: Segment) -> None:
        """Delete the segments of earlier epochs and generations: `whole` has all of the file."""
        for name in self._objects.list(f"{path}{SUFFIX}").objects:
            segment = Segment.parse(name)
            if segment is not None and segment.version < whole.version:
                self._forget(Place.SEGMENT, f"{path}{SUFFIX}/{name}")

    def _copy_whole(self, path: str) -> None:
        file = self._folder / path
        try:
            stamp = _stamp(file)
            before, seen = self._written.get(path), self._seen.get(path)
            self._seen[path] = stamp
            if stamp == before or not _is_due(stamp, before, seen, is_last=self._is_ending):
                return
            data = read(file, _LARGEST, below=self._folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        except UnreadableError as error:
            if path not in self._refused:
                self._refused.add(path)
                self._tell(
                    Notice(
                        "bucket-copy-failed",
                        f"not copied to the bucket: {error}",
                        reason=str(error),
                    )
                )
            return
        self._objects.write(path, data)
        self._written[path] = stamp

    def _fetch_requests(self) -> None:
        """Move requests of people from the bucket to this host: see `adapters.stores.requests`."""
        for name in sorted(self._objects.list(_REQUESTS).objects):
            if not Place.REQUEST.claims(name) or len(name.encode()) > _MAX_NAME:
                continue
            try:
                data = self._objects.read(f"{_REQUESTS}/{name}", _SMALL).data
            except UnreadableError as error:
                if name not in self._refused:
                    self._refused.add(name)
                    self._tell(
                        Notice(
                            "request-unheard",
                            f"a request in the bucket cannot be read: {error}",
                            reason=str(error),
                        )
                    )
                continue
            folder = self._folder / _REQUESTS
            folder.mkdir(exist_ok=True)
            temporary = folder / f".{name}.tmp"
            with removal.create_temporary(temporary, below=self._folder) as file:
                file.write(data)
            temporary.replace(folder / name)
            self._forget(Place.REQUEST, f"{_REQUESTS}/{name}")

    def _forget(self, place: Place, name: str) -> None:
        removal.remove_objects(place, [name], self._objects.delete)

    def _end_of(self, path: str) -> int:
        stream = self._streams.get(path)
        return stream.segments[-1].end if stream is not None and stream.segments else 0

    # --- what there is --------------------------------------------------------------------------

    def _growing(self) -> Iterator[str]:
        yield JOURNAL
        yield METRICS
        for phase in self._phases():
            yield from (f"{phase}/{name}" for name in PHASE_FILES)

    def _others(self) -> Iterator[str]:
        for name in _files(self._folder):
            if name not in (
                JOURNAL,
                METRICS,
                PROCESSES,
            ):  # the processes on record are of this host only
                yield name
        yield from self._below("drills")
        yield from self._below(ARCHIVE)
        for phase in self._phases():
            for name in _files(self._folder / phase):
                if name not in PHASE_FILES:
                    yield f"{phase}/{name}"
            folder = f"{phase}/{ATTEMPTS_FOLDER}"
            for attempt in attempts_in_order(_folders(self._folder / folder))[-_NUM_CHANGING:]:
                yield from self._below(f"{folder}/{attempt}")

    def _phases(self) -> list[str]:
        """Returns the folders of the newest phases; files of older ones do not change any more."""
        names = [name for name in _folders(self._folder) if is_phase_folder(name)]
        return sorted(names)[-_NUM_CHANGING:]

    def _below(self, folder: str) -> Iterator[str]:
        for name in _files(self._folder / folder):
            yield f"{folder}/{name}"


class _Stream:
    """The segments of a growing file that are in the bucket."""

    def __init__(self, generation: int = 0) -> None:
        """`generation` counts how often the file was replaced."""
        self.generation = generation
        self.segments: tuple[Segment, ...] = ()
        self.file: int | None = None
        """The inode of the file; None: nothing was copied yet."""

    def continues_in(self, status: os.stat_result) -> bool:
        """Whether the file, which now has this status, has only grown. A cut file is a new one."""
        end = self.segments[-1].end if self.segments else 0
        return self.file in (None, status.st_ino) and status.st_size >= end


class MirroredStorage:
    """A storage on this host. A durable `append` returns only once the bucket has the bytes."""

    def __init__(self, storage: Storage, mirror: Mirror, give_up: Callable[[], bool]) -> None:
        """`give_up` returns True if we should stop waiting for the bucket. It raises an error if we
        must not write to the bucket any more."""
        self._storage = storage
        self._mirror = mirror
        self._give_up = give_up

    def read(self, path: str, limit: int) -> bytes:
        """See `ports.Storage`. An archived segment that is not on this host is read from the
        bucket."""
        try:
            return self._storage.read(path, limit)
        except FileNotFoundError:
            if not path.startswith(f"{ARCHIVE}/"):
                raise
            return self._mirror.read(path, limit)

    def replace(self, path: str, data: bytes) -> None:
        """See `ports.Storage`. The bucket has the file some seconds later."""
        if path == JOURNAL:
            self._mirror.replace(path, partial(self._storage.replace, path, data))
        else:
            self._storage.replace(path, data)

    def append(
        self, path: str, data: bytes, *, at: int | None = None, durable: bool = False
    ) -> None:
        """See `ports.Storage`. If a durable write does not reach the bucket in time, it stays on
        this host, and the mirror tries again.

        A record of the journal is copied at once; lines for people some seconds later.
        """
        self._storage.append(path, data, at=at, durable=durable)
        if durable:
            self._mirror.flush(path, self._give_up)
        elif path == JOURNAL:
            self._mirror.wake()

    def make_directory(self, path: str, *, durable: bool = False) -> bool:
        """See `ports.Storage`. A bucket has no directories."""
        return self._storage.make_directory(path, durable=durable)

    def names(self, path: str) -> list[str]:
        """See `ports.Storage`. For the archive these are the names in the bucket."""
        return self._mirror.archived() if path == ARCHIVE else self._storage.names(path)

    def local_path(self, path: str) -> Path:
        """See `ports.Storage`."""
        return self._storage.local_path(path)


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def _is_due(stamp: _Stamp, before: _Stamp | None, seen: _Stamp | None, *, is_last: bool) -> bool:
    """True if a changed file is to be written now.

    `before` is its stamp when it was last written, `seen` that of the last look. A large file must
    be new, or have grown by half, or not have changed since the last look; unless this `is_last`.
    """
    size = stamp[0]
    grown = before is None or size >= before[0] * 3 // 2
    return is_last or size <= _SMALL or grown or stamp == seen


def _stamp(file: Path) -> _Stamp:
    status = file.lstat()
    return status.st_size, status.st_mtime_ns


def _files(folder: Path) -> list[str]:
    return [path.name for path in _entries(folder) if path.is_file() and not path.is_symlink()]


def _folders(folder: Path) -> list[str]:
    return [path.name for path in _entries(folder) if path.is_dir() and not path.is_symlink()]


def _entries(folder: Path) -> list[Path]:
    """Returns the entries of `folder` without hidden ones (temporary files, files for this host
    only); nothing if `folder` is a link."""
    if folder.is_symlink():
        return []
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return []
