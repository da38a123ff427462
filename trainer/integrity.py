"""The manifest of a checkpoint: what every file of it was when it was committed.

Orbax detects neither flipped bits nor, reliably, truncation (112 of 120 single-bit flips in array
data restored silently), so a checkpoint is only worth what the disk makes of it. A manifest beside
the files holds their sizes and digests (SHA-256; in a bucket MD5, which it tells by itself), as
`sha256sum -c` lists and OCI image manifests do, and can be checked before anything is read. It says
in its own last member what the rest of it hashes to, because a flipped bit there must not condemn
or acquit a checkpoint either.

Additions are allowed: a reader takes only files that were there at the commit. What the mark of the
commit holds does not matter: a person may have put it in place.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from supervisor.protocol.committed import MARKER
from supervisor.protocol.reading import UnreadableError, parse_object
from trainer.files import StepFiles, files_in

T = TypeVar("T")

MANIFEST = "supervise_manifest.json"
OTHERS = (MARKER, MANIFEST, MANIFEST + ".tmp", f".{MANIFEST}.tmp")
"""Names of files beside those that a manifest lists."""
_MAX_MANIFEST = 64 << 20
"""Bytes: some hundred for each file of a checkpoint."""
_ALGORITHMS = {64: "sha256", 32: "md5"}
"""By the length of a digest."""
_THREADS = min(8, max(1, len(os.sched_getaffinity(0)) // 2))
"""For hashing: the other half of the cores is the reader's beside it."""


class DamagedError(Exception):
    """The files are not what was committed; the text says which and how."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Sizes and digests by relative path, and CRC-32 `checksums` (none in a manifest of an earlier
    version, nor in one of a bucket, where digests cost nothing); `fingerprint` is what a reader
    must share, and `information` what it may like to know."""

    files: Mapping[str, tuple[int, str]]
    checksums: Mapping[str, int]
    fingerprint: Mapping[str, Any]
    information: Mapping[str, Any]

    def verify(self, directory: Path) -> None:
        """See that `directory` still holds these files: sizes first, they cost next to nothing.

        Raises:
            DamagedError: a file is missing, unreadable, or has another size or content.
        """
        digests = {name: digest for name, (_, digest) in self.files.items() if name != MARKER}
        self._verify(directory, digests, lambda files, name: _digest(files, name, digests[name]))

    def verify_quickly(self, directory: Path) -> None:
        """The same by the checksums, at a third of the cost: what a disk does to a file escapes
        them once in four billion times.

        Raises:
            DamagedError: as `verify`.
        """
        if self.checksums:
            checksums = {name: one for name, one in self.checksums.items() if name != MARKER}
            self._verify(directory, checksums, _checksum)
        else:
            self.verify(directory)

    def _verify(
        self,
        directory: Path,
        recorded: Mapping[str, object],
        compute: Callable[[StepFiles, str], object],
    ) -> None:
        files = files_in(directory)
        self._verify_sizes(files)
        for name, found in _of_each(files, recorded, compute).items():
            if found != recorded[name]:
                raise DamagedError(f"{name} has not the content that was saved")

    def verify_sizes(self, directory: Path) -> None:
        """See that `directory` still holds files of these sizes.

        Raises:
            DamagedError: a file is missing, or has another size.
        """
        self._verify_sizes(files_in(directory))

    def _verify_sizes(self, files: StepFiles) -> None:
        for name, (size, _) in self.files.items():
            if name == MARKER:  # an earlier version has it too
                continue
            found = files.size(name)
            if found is None:
                raise DamagedError(f"{name} is missing")
            if found != size:
                raise DamagedError(f"{name} has {found} bytes, not {size}")


def record(
    directory: Path, fingerprint: Mapping[str, Any], information: Mapping[str, Any]
) -> Manifest:
    """Write the manifest of what is in `directory` now, whole or not at all."""
    files = files_in(directory)
    names = sorted(name for name in files.names() if Path(name).name not in OTHERS)
    sizes = {name: files.size(name) or 0 for name in names}
    digests = _of_each(files, names, lambda files, name: files.digest(name, files.algorithm))
    checksums = _of_each(files, names, _checksum)
    manifest = Manifest(
        {name: (sizes[name], digests[name]) for name in names},
        {name: checksum for name, checksum in checksums.items() if checksum is not None},
        dict(fingerprint),
        dict(information),
    )
    files.replace(MANIFEST, _encode(manifest))
    return manifest


def read(directory: Path) -> Manifest | None:
    """The manifest in `directory`; None: there is none.

    Raises:
        DamagedError: what is there is not what was written. Only a disk does that (it is written
            atomically), so the files that it can no longer vouch for are not trusted either.
    """
    try:
        data = files_in(directory).read(MANIFEST, _MAX_MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnreadableError as error:
        raise DamagedError(str(error)) from None
    try:
        body = parse_object(data, MANIFEST)
        files = {name: (int(size), str(digest)) for name, (size, digest) in body["files"].items()}
        checksums = {name: int(body["crc32"][name]) for name in files} if "crc32" in body else {}
        fingerprint, information = dict(body["fingerprint"]), dict(body["information"])
        manifest = Manifest(files, checksums, fingerprint, information)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
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


def _of_each(
    files: StepFiles, names: Iterable[str], compute: Callable[[StepFiles, str], T]
) -> dict[str, T]:
    """By name; hashing releases the interpreter's lock, so threads help.

    Raises:
        DamagedError: a file cannot be read.
    """

    def of(name: str) -> tuple[str, T]:
        try:
            return name, compute(files, name)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise DamagedError(f"{name} cannot be read: {error.strerror}") from error

    with ThreadPoolExecutor(_THREADS, "hashing") as pool:
        return dict(pool.map(of, names))


def _checksum(files: StepFiles, name: str) -> int | None:
    return files.checksum(name)


def _digest(files: StepFiles, name: str, like: str) -> str:
    """Of the kind that `like` is, so that a checkpoint can move from a disk to a bucket or back."""
    return files.digest(name, _ALGORITHMS.get(len(like), files.algorithm))
