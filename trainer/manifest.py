"""The manifest of a checkpoint: size and digest of every file at the time of the commit.

Orbax does not detect flipped bits, and does not reliably detect truncation: 112 of 120 single-bit
flips in array data were restored without an error. So without a manifest a checkpoint is as good as
the disk. The manifest lies beside the files and holds their sizes and digests (SHA-256; in a bucket
MD5, which the bucket itself computes), as `sha256sum -c` lists and OCI image manifests do. It can
be checked before anything is read. Its own last member is the digest of the rest of it: a flipped
bit in the manifest must not make a good checkpoint look damaged, or a damaged one look good.

Additional files are allowed: a reader takes only files that were there at the commit. The content
of the commit marker does not matter: a person may have put the marker in place.
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
from trainer.step_files import StepFiles, files_in

T = TypeVar("T")

MANIFEST = "supervise_manifest.json"
EVALUATION_NOTE = "supervise_evaluation.json"
"""How far the evaluation of the step has come: see `trainer.evaluation_progress`."""
OTHERS = (
    *(MARKER, MANIFEST, MANIFEST + ".tmp", f".{MANIFEST}.tmp"),
    *(EVALUATION_NOTE, f".{EVALUATION_NOTE}.tmp"),
)
"""Names of files that may lie beside those that a manifest lists."""
READING_MARK = "supervise_reading_rank"
"""The name of the mark of `trainer.verification`, without the rank."""
_MAX_MANIFEST = 64 << 20
"""Bytes. A manifest has some hundred bytes for each file of a checkpoint."""
_ALGORITHMS = {64: "sha256", 32: "md5"}
"""The algorithm by the number of hex digits of a digest."""
_THREADS = min(8, max(1, len(os.sched_getaffinity(0)) // 2))
"""Threads for hashing. The other half of the cores is left to the reader that runs at the same
time."""


class DamagedError(Exception):
    """The files are not what was committed. The text says which file, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Size and digest of each file by its relative path, and its CRC-32 in `checksums`.

    `checksums` is empty in a manifest of an earlier version, and in a bucket, where digests cost
    nothing. `fingerprint` must be equal to the reader's; `information` is for people.
    """

    files: Mapping[str, tuple[int, str]]
    checksums: Mapping[str, int]
    fingerprint: Mapping[str, Any]
    information: Mapping[str, Any]

    def verify(self, directory: Path) -> None:
        """Check that `directory` still holds these files: first all sizes, which is cheap, then
        digests.

        Raises:
            DamagedError: a file is missing, unreadable, or has another size or content.
        """
        digests = {name: digest for name, (_, digest) in self.files.items() if name != MARKER}
        self._verify(directory, digests, lambda files, name: _digest(files, name, digests[name]))

    def verify_quickly(self, directory: Path) -> None:
        """Check sizes and CRC-32 checksums, at a third of the cost of `verify`. A checksum misses a
        random change with a probability of one in four billion. Without checksums, this is
        `verify`.

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
                raise DamagedError(f"{name} does not have the content that was saved")

    def verify_sizes(self, directory: Path) -> None:
        """Check that `directory` still holds files of these sizes.

        Raises:
            DamagedError: a file is missing, or has another size.
        """
        self._verify_sizes(files_in(directory))

    def _verify_sizes(self, files: StepFiles) -> None:
        for name, (size, _) in self.files.items():
            if name == MARKER:  # a manifest of an earlier version lists it too
                continue
            found = files.size(name)
            if found is None:
                raise DamagedError(f"{name} is missing")
            if found != size:
                raise DamagedError(f"{name} has {found} bytes, not {size}")


def write_manifest(
    directory: Path, fingerprint: Mapping[str, Any], information: Mapping[str, Any]
) -> Manifest:
    """Write the manifest of the files that are in `directory` now, atomically; returns it."""
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


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest in `directory`; None: there is none.

    Raises:
        DamagedError: the manifest is not what was written. It was written atomically, so only a
            disk can cause that. Then the files that it should vouch for are not trusted either.
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
        raise DamagedError(f"{MANIFEST} does not have the content that was saved")
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
    """Return what `compute` returns for each file, by name. Threads compute it: hashing releases
    the interpreter's lock.

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
    """Return the digest by the algorithm of the digest `like`: so a checkpoint can move from a disk
    to a bucket or back."""
    return files.digest(name, _ALGORITHMS.get(len(like), files.algorithm))
