"""Brings a job from its bucket to this host, before it goes on here.

The bucket is the truth: another host may have had the job since it was last here. What this host
has besides, and the bucket did not get, is kept only where it continues what is there. Outputs of
attempts stay in the bucket: nobody needs them to go on.
"""

from __future__ import annotations

import stat
from pathlib import Path

from supervisor.files import attempts
from supervisor.files.segments import JOURNAL, OF_A_PHASE, SUFFIX, Segment, merged
from supervisor.host.notice import Notice, Tell
from supervisor.ports import MAX_OBJECT, Objects
from supervisor.protocol import removal
from supervisor.protocol.reading import UnreadableError, read

_DRILLS = "drills"
_MAX_NAME = 240
"""Bytes; a file system takes 255, and a temporary name is longer."""


def read_growing(objects: Objects, path: str, tell: Tell) -> bytes | None:
    """A file that is kept in segments, as far as it is whole; None where there is none.

    Raises:
        OSError: the bucket cannot be read.
    """
    merge = merged(objects.list(f"{path}{SUFFIX}").objects)
    for name in merge.torn:
        tell(
            Notice(
                "bucket-object-left-out",
                f"{path}: the segment {name} does not hold as many bytes as it should: left out",
                place=str(path),
            )
        )
    if merge.beyond:
        missing = f"bytes {merge.end} to {merge.beyond[0].start}"
        tell(
            Notice(
                "bucket-object-left-out",
                f"{path}: {missing} are missing in the bucket: what comes after them is left out",
                place=str(path),
            )
        )
    if merge.end > MAX_OBJECT:
        raise UnreadableError(path, f"has {merge.end} bytes in the bucket, more than {MAX_OBJECT}")
    data = bytearray()
    for segment in merge.chain:
        data += objects.read(f"{path}{SUFFIX}/{segment.name}", segment.size).data
    return bytes(data) if merge.chain else None


def epoch_after(objects: Objects) -> int:
    """An epoch above all under which the journal was written.

    The lease counts them, but a person may have removed it.
    """
    names = objects.list(f"{JOURNAL}{SUFFIX}").objects
    segments = [segment for name in names if (segment := Segment.parse(name)) is not None]
    return 1 + max((segment.epoch for segment in segments), default=0)


def fetch(objects: Objects, folder: Path, set_aside: str, tell: Tell) -> None:
    """Make `folder` hold what the bucket does, as far as the job needs it to go on; compiled
    programs are the business of `adapters.stores.shared_programs`.

    A file here that grew in another way than there, or that is not there any more, is set aside
    under its name and `set_aside`.

    Raises:
        OSError: the bucket cannot be read, or the folder not be written.
    """
    names = objects.list("").folders
    phases = sorted(filter(attempts.is_phase_folder, names))
    for path in (JOURNAL, *(f"{phase}/{name}" for phase in phases for name in OF_A_PHASE)):
        _bring(folder, path, read_growing(objects, path, tell), set_aside, tell)
    for place in (*phases, *([_DRILLS] if _DRILLS in names else [])):
        for name, size in sorted(objects.list(place).objects.items()):
            if name.startswith("."):
                continue  # nothing of ours: see `adapters.stores.mirror`
            if not _is_a_name(name):
                tell(
                    Notice(
                        "bucket-object-left-out",
                        f"an object in {place} has a name that no file of ours has: left out",
                        place=str(place),
                    )
                )
                continue
            target = folder / place / name
            if _size(target) != size:
                _write(folder, target, objects.read(f"{place}/{name}").data)


def _bring(folder: Path, path: str, there: bytes | None, set_aside: str, tell: Tell) -> None:
    """Make a file that grows what it is in the bucket, or leave it where it is that and more."""
    target = folder / path
    here = _content(target, folder)
    if here is not None and (there is None or not _continues(here, there)):
        aside = removal.rename(target, f".{target.name}.{set_aside}")
        tell(
            Notice(
                "file-set-aside",
                f"{target.name} here is not the bucket's, and was set aside: {aside}",
                place=target.name,
            )
        )
        here = None
    if there is not None and len(there) > len(here or b""):
        _write(folder, target, there)


def _is_a_name(name: str) -> bool:
    """Whether a file here can have this name of the bucket's, and its temporary one too."""
    return name.isprintable() and not name.startswith(".") and len(name.encode()) <= _MAX_NAME


def _size(target: Path) -> int | None:
    """None: there is no such file, or something else under its name."""
    try:
        status = target.lstat()
    except FileNotFoundError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _content(target: Path, folder: Path) -> bytes | None:
    try:
        return read(target, MAX_OBJECT, below=folder)
    except FileNotFoundError:
        return None


def _continues(one: bytes, other: bytes) -> bool:
    """Whether one of them begins with all of the other."""
    return one.startswith(other) or other.startswith(one)


def _write(folder: Path, target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    with removal.temporary(temporary, below=folder) as file:
        file.write(data)
    temporary.replace(target)
