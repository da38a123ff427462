"""JAX's persistent compilation cache, kept whole.

JAX writes an entry in place: a process that is killed while it writes leaves half of one, which JAX
then finds damaged at every start and never replaces. So each attempt gets a private directory, with
hard links to the entries of the shared one, and what it adds is taken over once it is known to be
whole. What was taken over is listed with its SHA-256 in a file that `sha256sum -c` reads; entries
that are no longer what they were are removed.

An entry is one zlib or zstd stream (`jax._src.compilation_cache`). zlib ends with a checksum of its
own; of zstd (RFC 8878), which the standard library cannot unpack, the blocks are counted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

_DIRECTORY = "JAX_COMPILATION_CACHE_DIR"
_XLA_CACHES = "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"
_THEIRS = (_DIRECTORY, _XLA_CACHES, "JAX_COMPILATION_CACHE_MAX_SIZE")
"""Who sets one of these keeps a cache of their own, or none."""
_DEFAULTS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    # A second cache, of XLA's autotuner, would be below the first one, and its path a part of every
    # key (on all platforms): what one attempt compiles, no other would find.
    _XLA_CACHES: "none",
}

_SUFFIX = "-cache"
_SUMS = "SHA256SUMS"
_CHUNK = 1 << 20

_Stamp = tuple[int, int, int]
"""Inode, size and time of change of a file that was verified."""


class CompileCache:
    """The shared directory of one job. Only one supervisor may use it at a time.

    An `OSError` is told once, and costs the attempt its cache, nothing else.
    """

    def __init__(self, directory: Path, tell: Callable[[str], None]) -> None:
        """Nothing is read yet. `tell` may be called from another thread."""
        self._directory = directory
        self._tell = tell
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._sums: dict[str, str] | None = None
        self._verified: dict[str, _Stamp] = {}

    def environment(self, given: Mapping[str, str], private: Path) -> dict[str, str]:
        """What to add to the environment `given` of a process so that it uses the cache through
        `private`, which is filled for it; nothing where `given` says otherwise."""
        if any(name in given for name in _THEIRS):
            return {}
        with self._lock, self._best_effort():
            self._look()
            for name in self._verified:
                private.mkdir(mode=0o700, exist_ok=True)
                _link(self._directory / name, private / name)
        missing = {name: value for name, value in _DEFAULTS.items() if name not in given}
        return missing | {_DIRECTORY: str(private)}

    def take_over(self, private: Path) -> None:
        """Take over what is whole in `private`, whose process lives; returns at once."""
        threading.Thread(
            target=self._take_over, args=(private,), name="compile cache", daemon=True
        ).start()

    def retire(self, private: Path) -> None:
        """Take over what is whole in `private`, whose process is gone, and remove the rest."""
        if not private.is_dir():
            return
        for name in self._take_over(private):
            self._tell(f"the compilation of {_program(name)} was not kept: written in part only")
        shutil.rmtree(private, ignore_errors=True)

    def _take_over(self, private: Path) -> list[str]:
        """The entries that are not whole (yet)."""
        unfinished = []
        with self._lock, self._best_effort():
            self._look()
            for name in sorted(_entries(private).keys() - self._verified.keys()):
                if (digest := _digest(private / name)) is None:
                    unfinished.append(name)
                else:
                    self._add(name, private / name, digest)
        return unfinished

    def _look(self) -> None:
        """Verify what is new in the shared directory, or has changed; remove what is damaged."""
        found = _entries(self._directory)
        if self._sums is None:
            self._sums = _read_sums(self._directory / _SUMS)
        for name, stamp in found.items():
            if self._verified.get(name) == stamp:
                continue
            path = self._directory / name
            digest = _digest(path)
            if digest is None or self._sums.get(name, digest) != digest:
                path.unlink(missing_ok=True)
                self._verified.pop(name, None)
                self._tell(f"the cached compilation of {_program(name)} is damaged: removed")
            else:
                self._verified[name] = stamp
        for name in self._verified.keys() - found.keys():
            del self._verified[name]
        for name in self._sums.keys() - self._verified.keys():
            del self._sums[name]

    def _add(self, name: str, path: Path, digest: str) -> None:
        assert self._sums is not None
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._sums[name] = digest
        lines = (f"{digest}  {name}\n" for name, digest in sorted(self._sums.items()))
        _replace(self._directory / _SUMS, "".join(lines).encode())
        _link(path, self._directory / name)
        self._verified[name] = _stamp((self._directory / name).stat())

    @contextlib.contextmanager
    def _best_effort(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = f"the compilation cache cannot be used: {error.strerror} ({error.filename})"
            if text not in self._told:
                self._told.add(text)
                self._tell(text)


def _entries(directory: Path) -> dict[str, _Stamp]:
    """The entries of `directory` by name; nothing where there is no directory."""
    try:
        with os.scandir(directory) as found:
            return {one.name: _stamp(one.stat()) for one in found if one.name.endswith(_SUFFIX)}
    except FileNotFoundError:
        return {}


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _program(name: str) -> str:
    """What JAX calls the program in the entry `name`: `<program>-<key>-cache`."""
    return name.removesuffix(_SUFFIX).rpartition("-")[0]


def _read_sums(path: Path) -> dict[str, str]:
    """Digests by name. Lines that are none are left out: their entries are verified anew."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.split("  ", 1) for line in lines)
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2 and len(pair[0]) == 64}


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def _link(source: Path, target: Path) -> None:
    """Make `target` the same file as `source`, at once; a copy where there are no hard links."""
    try:
        target.hardlink_to(source)
    except FileExistsError:
        pass
    except OSError:
        temporary = target.with_name(f".{target.name}.tmp")
        shutil.copyfile(source, temporary)
        temporary.replace(target)


def _digest(path: Path) -> str | None:
    """The SHA-256 of an entry; None where it is not a whole one."""
    with path.open("rb") as file:
        if not is_whole(file):
            return None
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_whole(file: BinaryIO) -> bool:
    """Whether `file` holds one zlib or zstd stream from its beginning to its end, and no more."""
    magic = file.read(4)
    file.seek(0)
    try:
        return _whole_zstd(file) if magic == _ZSTD_MAGIC else _whole_zlib(file)
    except (EOFError, zlib.error):
        return False


def _whole_zlib(file: BinaryIO) -> bool:
    unpacker = zlib.decompressobj()
    while chunk := file.read(_CHUNK):
        if unpacker.eof:
            return False
        while chunk and not unpacker.eof:
            unpacker.decompress(chunk, _CHUNK)  # bounded: what it unpacks to is not kept
            chunk = unpacker.unconsumed_tail
    return unpacker.eof and not unpacker.unused_data


_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_DICTIONARY_BYTES = (0, 1, 2, 4)
_RLE, _RESERVED = 1, 3


def _whole_zstd(file: BinaryIO) -> bool:
    """One frame: its header, its blocks by their lengths, and the checksum if it has one."""
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
