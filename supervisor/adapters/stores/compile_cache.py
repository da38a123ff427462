"""Keeps JAX's persistent compilation cache free of incomplete and damaged entries.

JAX writes an entry in place: a process that is killed while it writes leaves half an entry. JAX
then reports it as damaged at every start and never replaces it. So JAX works in the directory
`live`, and an entry there is taken over only once it is known to be whole, by a hard link. Entries
that were taken over are listed with their SHA-256 in a file that `sha256sum -c` reads; one whose
sum has changed is removed. All attempts and standbys use the same path `live`, because the path is
a part of JAX's keys (XLA's autotuner keeps a cache of its own below it).

An entry is native code: if other users could add one, neither we nor JAX use the cache.

The size limit is applied here. JAX's own limit, JAX_COMPILATION_CACHE_MAX_SIZE, needs a lock and a
file beside each entry, which linked entries do not have. The least recently used entries go first,
by their access times, which most file systems keep to the day; our own reading does not change
them.

An entry is one zlib or zstd stream (`jax._src.compilation_cache`). zlib ends with a checksum. The
standard library cannot unpack zstd (RFC 8878), so there we only follow the lengths of the blocks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from supervisor.config.quantities import size_text
from supervisor.core.cache_trust import SUFFIX, SUMS, is_entry
from supervisor.core.retention import Kept, excess, limit_told
from supervisor.host.notice import Notice, Tell
from supervisor.protocol import private_folder, removal
from supervisor.protocol.reading import UnreadableError, open_file, read
from supervisor.protocol.removal import Place

_DIRECTORY = "JAX_COMPILATION_CACHE_DIR"
_THEIRS = (_DIRECTORY, "JAX_COMPILATION_CACHE_MAX_SIZE")
"""A program with one of these variables has its own cache, or none: we leave that to it."""
_DEFAULTS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}

_CHUNK = 1 << 20
_MAX_SUMS = 16 << 20
_MAX_ENTRY = 2 << 30
"""Bytes; no compiler writes a larger entry, so we do not hash it."""
_MAX_UNPACKED = 8 << 30

_Stamp = tuple[int, int]
"""Size and time of change (ns) of a file; a link or our copy of it has the same."""


class CompileCache:
    """The cache of one job. Only one supervisor may use it at a time.

    If the cache cannot be used (an `OSError`), this is reported once, and the job goes on without
    it. No process gets a cache whose entries cannot be verified, or which has an entry that must
    not be used and cannot be removed.
    """

    def __init__(self, directory: Path, tell: Tell) -> None:
        """Reads nothing yet. `tell` may be called from another thread."""
        self._directory = directory
        self._live = directory / "live"
        self._tell = tell
        self._has_complained = False
        self._lock = threading.Lock()
        self._sums: dict[str, str] = {}
        self._verified: dict[str, _Stamp] = {}

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Make the cache ready, and return what to add to the environment `given` of a process so
        that it uses the cache: nothing if `given` sets one of `_THEIRS`, or ours is unusable."""
        if any(name in given for name in _THEIRS):
            return {}
        is_usable = False
        with self._best_effort():
            for directory in (self._directory, self._live):  # never makes a removed model_dir
                private_folder.make(directory)
            is_usable = True
        if not is_usable or not self._remove_unfit():
            return {}
        with self._lock, self._best_effort():
            found = _entries(self._live)
            for name, stamp in self._verified.items():
                if found.get(name) != stamp:
                    _link(self._directory / name, self._live / name)
        missing = {name: value for name, value in _DEFAULTS.items() if name not in given}
        return missing | {_DIRECTORY: str(self._live)}

    def take_over(self) -> None:
        """Take over what a running worker has compiled, in another thread; returns at once."""
        threading.Thread(target=self._take_over, name="compile cache", daemon=True).start()

    def finish_attempt(self) -> None:
        """Take over what the worker has compiled, and remove entries that are not whole. The worker
        must have ended."""
        self._remove_unfit()

    def _remove_unfit(self) -> bool:
        """Do what `finish_attempt` says. Returns False if the cache may still contain an entry that
        must not be used."""
        unfit = self._take_over()
        if unfit is None:
            return False
        for name, why in list(unfit.items()):
            with self._best_effort():
                removal.remove_file(Place.COMPILED, self._live / name, below=self._directory)
                del unfit[name]
                self._tell(
                    Notice(
                        "compilation-not-kept",
                        f"the compiled program {_program(name)} was not kept: it {why}",
                        program=_program(name),
                        reason=why,
                    )
                )
        return not unfit

    def _take_over(self) -> dict[str, str] | None:
        """Take over the entries that are whole; returns by name why the others are not, so far.
        Returns None if the entries cannot be verified."""
        with self._lock, self._best_effort():
            unfit: dict[str, str] = {}
            if not self._exists():
                return unfit
            self._verify()
            digests: dict[str, str] = {}
            for name in sorted(_entries(self._live).keys() - self._verified.keys()):
                try:
                    digests[name] = _digest(self._live / name)
                except _UnfitError as error:
                    unfit[name] = error.why or "is incomplete"
            with self._best_effort():
                self._add(digests)
            return unfit
        return None

    def keep_within(self, limit: int) -> None:
        """Delete the least recently used entries, so that the rest takes at most `limit` bytes."""
        with self._lock, self._best_effort():
            if not self._exists():
                return
            found: dict[str, list[os.stat_result]] = {}
            for folder in (self._live, self._directory):
                for name, status in _statuses(folder).items():
                    found.setdefault(name, []).append(status)
            kept = [_kept(name, files) for name, files in found.items()]
            deleted = excess(kept, limit)
            for one in deleted:
                self._remove(one.name)
                self._sums.pop(one.name, None)
            if deleted:
                self._write_sums()
                freed = sum(one.size for one in deleted)
                what = f"{len(deleted)} of {len(kept)} compiled programs"
                self._tell(
                    Notice(
                        "limit-applied",
                        limit_told(what, freed, "compile_cache", limit),
                        detail="compile_cache",
                        bytes=freed,
                    )
                )

    def _exists(self) -> bool:
        """True if the folders of the cache exist.

        Raises:
            OSError: other users could write to them.
        """
        try:
            private_folder.check(self._directory)
            private_folder.check(self._live)
        except FileNotFoundError:
            return False
        return True

    def _verify(self) -> None:
        """Verify new and changed entries that were taken over; remove damaged ones."""
        found = _entries(self._directory)
        if not self._sums:
            self._sums = _read_sums(self._directory / SUMS)
        for name, stamp in found.items():
            if self._verified.get(name) == stamp:
                continue
            try:
                digest = _digest(self._directory / name)
                if self._sums.get(name, digest) != digest:
                    raise _UnfitError
                self._verified[name] = stamp
            except _UnfitError as error:
                self._remove_and_report(name, error.why or "is damaged")
        for name in self._verified.keys() - found.keys():
            del self._verified[name]
        for name in self._sums.keys() - self._verified.keys():
            del self._sums[name]

    def _add(self, digests: Mapping[str, str]) -> None:
        if not digests:
            return
        self._sums.update(digests)
        self._write_sums()
        for name in digests:
            _link(self._live / name, self._directory / name)
            self._verified[name] = _stamp((self._directory / name).stat())

    def _write_sums(self) -> None:
        lines = (f"{digest}  {name}\n" for name, digest in sorted(self._sums.items()))
        _replace(self._directory / SUMS, "".join(lines).encode())

    def _remove(self, name: str) -> None:
        for directory in (self._directory, self._live):
            removal.remove_file(Place.COMPILED, directory / name, below=self._directory)
        self._verified.pop(name, None)

    def _remove_and_report(self, name: str, why: str) -> None:
        self._remove(name)
        self._tell(
            Notice(
                "compilation-removed",
                f"the compiled program {_program(name)} was removed from the cache: it {why}",
                program=_program(name),
                reason=why,
            )
        )

    @contextlib.contextmanager
    def _best_effort(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                why = f"{error.strerror} ({error.filename})" if error.strerror else str(error)
                self._tell(
                    Notice(
                        "compile-cache-off",
                        f"the compilation cache cannot be used: {why}",
                        reason=why,
                    )
                )


def _entries(directory: Path) -> dict[str, _Stamp]:
    """Returns the entries of `directory` by name; none if there is no such directory."""
    return {name: _stamp(status) for name, status in _statuses(directory).items()}


def _statuses(directory: Path) -> dict[str, os.stat_result]:
    try:
        with os.scandir(directory) as found:
            return {
                one.name: one.stat(follow_symlinks=False)
                for one in found
                if is_entry(one.name) and one.is_file(follow_symlinks=False)
            }
    except FileNotFoundError:
        return {}


def _kept(name: str, files: list[os.stat_result]) -> Kept:
    """Returns the entry `name`: its `files` are one file with two names, or copies of it."""
    sizes = {(one.st_dev, one.st_ino): one.st_size for one in files}
    used = max(max(one.st_atime, one.st_mtime) for one in files)
    return Kept(name, sum(sizes.values()), used)


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_size, status.st_mtime_ns


def _program(name: str) -> str:
    """Returns JAX's name of the program in the entry `name`, `<program>-<key>-cache`."""
    return name.removesuffix(SUFFIX).rpartition("-")[0]


def _read_sums(path: Path) -> dict[str, str]:
    """Reads the digests by name. Invalid lines are left out: their entries get new digests."""
    try:
        lines = read(path, _MAX_SUMS).decode("utf-8", "replace").splitlines()
    except (FileNotFoundError, UnreadableError):
        return {}
    pairs = (line.split("  ", 1) for line in lines)
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2 and len(pair[0]) == 64}


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with removal.create_temporary(temporary, below=path.parent) as file:
        file.write(data)
    temporary.replace(path)


def _link(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, atomically; a copy if hard links do not work."""
    temporary = target.with_name(f".{target.name}.tmp")
    removal.remove_file(Place.TEMPORARY, temporary, below=target.parent)
    try:
        temporary.hardlink_to(source)
    except OSError:
        shutil.copy2(source, temporary)
    temporary.replace(target)


class _UnfitError(Exception):
    """This entry must not be used. `why` says why; it is empty for an incomplete or changed one."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


def _digest(path: Path) -> str:
    """Returns the SHA-256 of an entry, as hex.

    Raises:
        _UnfitError: it is incomplete, another user's, or larger than `_MAX_ENTRY`.
    """
    with open_file(path) as raw, io.BufferedReader(raw) as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid():
            raise _UnfitError(f"belongs to uid {status.st_uid}, not to us")
        if status.st_size > _MAX_ENTRY:
            raise _UnfitError(f"has {size_text(status.st_size)}, more than any compiler writes")
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_NOATIME)
        if not is_whole(file):
            raise _UnfitError
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_whole(file: BinaryIO) -> bool:
    """True if `file` contains exactly one zlib or zstd stream, from its beginning to its end."""
    magic = file.read(4)
    file.seek(0)
    try:
        return _whole_zstd(file) if magic == _ZSTD_MAGIC else _whole_zlib(file)
    except (EOFError, zlib.error):
        return False


def _whole_zlib(file: BinaryIO) -> bool:
    unpacker, unpacked = zlib.decompressobj(), 0
    while chunk := file.read(_CHUNK):
        if unpacker.eof:
            return False
        while chunk and not unpacker.eof:
            unpacked += len(unpacker.decompress(chunk, _CHUNK))  # bounded, and thrown away
            if unpacked > _MAX_UNPACKED:
                return False
            chunk = unpacker.unconsumed_tail
    return unpacker.eof and not unpacker.unused_data


_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_DICTIONARY_BYTES = (0, 1, 2, 4)
_RLE, _RESERVED = 1, 3


def _whole_zstd(file: BinaryIO) -> bool:
    """True if the frame is whole: header, blocks by their lengths, and the checksum, if any."""
    size = os.fstat(file.fileno()).st_size
    (descriptor,) = _exactly(file, 5)[4:]
    single_segment = descriptor >> 5 & 1
    content = _CONTENT_SIZE_BYTES[descriptor >> 6] or single_segment
    _exactly(file, (1 - single_segment) + _DICTIONARY_BYTES[descriptor & 3] + content)
    last = False
    while not last:
        header = int.from_bytes(_exactly(file, 3), "little")
        last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == _RESERVED:
            return False
        file.seek(1 if kind == _RLE else length, os.SEEK_CUR)
    file.seek(4 if descriptor >> 2 & 1 else 0, os.SEEK_CUR)
    return file.tell() == size


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError
    return data
