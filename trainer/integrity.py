"""The manifest of a checkpoint: what every file of it was when it was committed.

Orbax detects neither flipped bits nor, reliably, truncation (112 of 120 single-bit flips in array
data restored silently), so a checkpoint is only worth what the disk makes of it. A manifest beside
the files holds their sizes and SHA-256 digests, as `sha256sum -c` lists and OCI image manifests do,
and can be checked before anything is read. It says in its own last member what the rest of it
hashes to, because a flipped bit there must not condemn or acquit a checkpoint either.

Additions are allowed: a reader takes only files that were there at the commit.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

MANIFEST = "supervise_manifest.json"
_TEMPORARY = MANIFEST + ".tmp"
_CHUNK = 1 << 20
_THREADS = min(8, max(1, len(os.sched_getaffinity(0)) // 2))
"""For hashing: the other half of the cores is the reader's beside it."""


class DamagedError(Exception):
    """The files are not what was committed; the text says which and how."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Sizes and SHA-256 digests by relative path, and CRC-32 `checksums` (none in a manifest of an
    earlier version); `fingerprint` is what a reader must share, and `information` what it may like
    to know."""

    files: Mapping[str, tuple[int, str]]
    checksums: Mapping[str, int]
    fingerprint: Mapping[str, Any]
    information: Mapping[str, Any]

    def verify(self, directory: Path) -> None:
        """See that `directory` still holds these files: sizes first, they cost next to nothing.

        Raises:
            DamagedError: a file is missing, unreadable, or has another size or content.
        """
        digests = {name: digest for name, (_, digest) in self.files.items()}
        self._verify(directory, digests, _digest)

    def verify_quickly(self, directory: Path) -> None:
        """The same by the checksums, at a third of the cost: what a disk does to a file escapes
        them once in four billion times.

        Raises:
            DamagedError: as `verify`.
        """
        if self.checksums:
            self._verify(directory, self.checksums, _checksum)
        else:
            self.verify(directory)

    def _verify(
        self, directory: Path, recorded: Mapping[str, T], compute: Callable[[Path], T]
    ) -> None:
        self.verify_sizes(directory)
        for name, found in _of_each(directory, recorded, compute).items():
            if found != recorded[name]:
                raise DamagedError(f"{name} has not the content that was saved")

    def verify_sizes(self, directory: Path) -> None:
        """See that `directory` still holds files of these sizes.

        Raises:
            DamagedError: a file is missing, or has another size.
        """
        for name, (size, _) in self.files.items():
            found = _size(directory / name)
            if found is None:
                raise DamagedError(f"{name} is missing")
            if found != size:
                raise DamagedError(f"{name} has {found} bytes, not {size}")


def record(
    directory: Path, fingerprint: Mapping[str, Any], information: Mapping[str, Any]
) -> Manifest:
    """Write the manifest of what is in `directory` now, whole or not at all."""
    paths = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    names = sorted(str(path) for path in paths if path.name not in (MANIFEST, _TEMPORARY))
    sizes = [(directory / name).stat().st_size for name in names]
    digests = _of_each(directory, names, _digest)
    files = {name: (size, digests[name]) for name, size in zip(names, sizes, strict=True)}
    checksums = _of_each(directory, names, _checksum)
    manifest = Manifest(files, checksums, dict(fingerprint), dict(information))
    temporary = directory / _TEMPORARY
    with temporary.open("wb") as file:
        file.write(_encode(manifest))
        file.flush()
        os.fsync(file.fileno())  # else a power cut can leave the name with nothing in it
    temporary.replace(directory / MANIFEST)
    return manifest


def read(directory: Path) -> Manifest | None:
    """The manifest in `directory`; None: there is none.

    Raises:
        DamagedError: what is there is not what was written. Only a disk does that (it is written
            atomically), so the files that it can no longer vouch for are not trusted either.
    """
    try:
        data = (directory / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    try:
        body = json.loads(data)
        files = {name: (int(size), str(digest)) for name, (size, digest) in body["files"].items()}
        checksums = {name: int(body["crc32"][name]) for name in files} if "crc32" in body else {}
        fingerprint, information = dict(body["fingerprint"]), dict(body["information"])
        manifest = Manifest(files, checksums, fingerprint, information)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise DamagedError(f"{MANIFEST} is not a manifest") from None
    if _encode(manifest) != data:
        raise DamagedError(f"{MANIFEST} has not the content that was saved")
    return manifest


def _encode(manifest: Manifest) -> bytes:
    body: dict[str, Any] = {
        "fingerprint": manifest.fingerprint,
        "information": manifest.information,
        "files": manifest.files,
    }
    if manifest.checksums:
        body["crc32"] = manifest.checksums
    digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    return json.dumps(body | {"sha256": digest}, indent=1).encode() + b"\n"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _of_each(directory: Path, names: Iterable[str], compute: Callable[[Path], T]) -> dict[str, T]:
    """By name; hashing releases the interpreter's lock, so threads help.

    Raises:
        DamagedError: a file cannot be read.
    """

    def of(name: str) -> tuple[str, T]:
        try:
            return name, compute(directory / name)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise DamagedError(f"{name} cannot be read: {error.strerror}") from error

    with ThreadPoolExecutor(_THREADS, "hashing") as pool:
        return dict(pool.map(of, names))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(path: Path) -> int:
    checksum = 0
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            checksum = zlib.crc32(buffer[:size], checksum)
    return checksum
