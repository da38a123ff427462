"""JAX's persistent compilation cache, kept whole.

JAX writes an entry in place: a process that is killed while it writes leaves half of one, which JAX
then finds damaged at every start and never replaces. So it works in the directory `live`; what it
adds there is taken over, at once as a hard link, when it is known to be whole. What was taken over
is listed with its SHA-256 in a file that `sha256sum -c` reads; what is no longer what it was is
removed. `live` is one path for all attempts and standbys, because the path is a part of JAX's keys
(XLA's autotuner keeps a cache of its own below it).

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
_THEIRS = (_DIRECTORY, "JAX_COMPILATION_CACHE_MAX_SIZE")
"""Who sets one of these keeps a cache of their own, or none."""
_DEFAULTS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}

_SUFFIX = "-cache"
_SUMS = "SHA256SUMS"
_CHUNK = 1 << 20

_Stamp = tuple[int, int]
"""Size and time of change (ns) of a file: links and copies have their original's."""


class CompileCache:
    """The cache of one job. Only one supervisor may use it at a time.

    An `OSError` is told once, and costs the cache, nothing else.
    """

    def __init__(self, directory: Path, tell: Callable[[str], None]) -> None:
        """Nothing is read yet. `tell` may be called from another thread."""
        self._directory = directory
        self._live = directory / "live"
        self._tell = tell
        self._has_complained = False
        self._lock = threading.Lock()
        self._sums: dict[str, str] = {}
        self._verified: dict[str, _Stamp] = {}

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """What to add to the environment `given` of a process so that it uses the cache, which is
        made ready for it; nothing where `given` says otherwise."""
        if any(name in given for name in _THEIRS):
            return {}
        with self._best_effort():
            for directory in (self._directory, self._live):  # never model_dir, if it was removed
                directory.mkdir(mode=0o700, exist_ok=True)
        self.settle()
        with self._lock, self._best_effort():
            found = _entries(self._live)
            for name, stamp in self._verified.items():
                if found.get(name) != stamp:
                    _link(self._directory / name, self._live / name)
        missing = {name: value for name, value in _DEFAULTS.items() if name not in given}
        return missing | {_DIRECTORY: str(self._live)}

    def take_over(self) -> None:
        """Take over what a living worker has compiled; returns at once."""
        threading.Thread(target=self._take_over, name="compile cache", daemon=True).start()

    def settle(self) -> None:
        """Take over what the worker has compiled, which is gone, and remove what is not whole."""
        for name in self._take_over():
            (self._live / name).unlink(missing_ok=True)
            self._tell(f"the compilation of {_program(name)} was not kept: written in part only")

    def _take_over(self) -> list[str]:
        """The entries that are not whole (yet)."""
        digests: dict[str, str | None] = {}
        with self._lock, self._best_effort():
            self._look()
            new = _entries(self._live).keys() - self._verified.keys()
            digests = {name: _digest(self._live / name) for name in sorted(new)}
            self._add({name: digest for name, digest in digests.items() if digest is not None})
        return [name for name, digest in digests.items() if digest is None]

    def _look(self) -> None:
        """Verify what is new here, or has changed; remove what is damaged."""
        found = _entries(self._directory)
        if not self._sums:
            self._sums = _read_sums(self._directory / _SUMS)
        for name, stamp in found.items():
            if self._verified.get(name) == stamp:
                continue
            digest = _digest(self._directory / name)
            if digest is not None and self._sums.get(name, digest) == digest:
                self._verified[name] = stamp
            else:
                self._remove(name)
        for name in self._verified.keys() - found.keys():
            del self._verified[name]
        for name in self._sums.keys() - self._verified.keys():
            del self._sums[name]

    def _add(self, digests: Mapping[str, str]) -> None:
        if not digests:
            return
        self._sums.update(digests)
        lines = (f"{digest}  {name}\n" for name, digest in sorted(self._sums.items()))
        _replace(self._directory / _SUMS, "".join(lines).encode())
        for name in digests:
            _link(self._live / name, self._directory / name)
            self._verified[name] = _stamp((self._directory / name).stat())

    def _remove(self, name: str) -> None:
        for directory in (self._directory, self._live):
            (directory / name).unlink(missing_ok=True)
        self._verified.pop(name, None)
        self._tell(f"the cached compilation of {_program(name)} is damaged: removed")

    @contextlib.contextmanager
    def _best_effort(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                self._tell(
                    f"the compilation cache cannot be used: {error.strerror} ({error.filename})"
                )


def _entries(directory: Path) -> dict[str, _Stamp]:
    """The entries of `directory` by name; nothing where there is no directory."""
    try:
        with os.scandir(directory) as found:
            return {
                one.name: _stamp(one.stat())
                for one in found
                if one.name.endswith(_SUFFIX) and not one.name.startswith(".")
            }
    except FileNotFoundError:
        return {}


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_size, status.st_mtime_ns


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
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        temporary.hardlink_to(source)
    except OSError:
        shutil.copy2(source, temporary)
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
