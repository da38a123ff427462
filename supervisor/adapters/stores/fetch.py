"""Copies a job from its bucket to this host before the job continues here.

The bucket is the truth: another host may have run the job since it last ran here. Where a file on
this host has more than the bucket, it is kept only if it begins with all that the bucket has. The
outputs of attempts stay in the bucket: the job does not need them to continue.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

from supervisor.files.attempts import is_phase_folder
from supervisor.files.segments import (
    ARCHIVE,
    JOURNAL,
    METRICS,
    PHASE_FILES,
    SUFFIX,
    Segment,
    merge_objects,
)
from supervisor.history.archive import is_segment
from supervisor.host.notice import Notice, Tell
from supervisor.ports import MAX_OBJECT, Objects
from supervisor.protocol import removal
from supervisor.protocol.reading import UnreadableError, read

_DRILLS = "drills"
_MAX_NAME = 240
"""Bytes; a file system allows 255, and a temporary name is longer than the file's."""


def read_growing(objects: Objects, path: str, tell: Tell) -> bytes | None:
    """Returns the content of a file that is kept in segments, up to the first gap; None: it has no
    segment.

    If the beginning is lost, it returns the segments that were written last: so a journal counts as
    damaged, not as new. `tell` gets a notice about what is left out.

    Raises:
        UnreadableError: the file is larger than `MAX_OBJECT`.
        OSError: the bucket cannot be read.
    """
    found = objects.list(f"{path}{SUFFIX}").objects
    merge = merge_objects(found)
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
    names = [segment.name for segment in merge.chain]
    if not names and (names := _newest(found)):
        text = f"{path}: its beginning is not whole in the bucket; what is there is read"
        tell(Notice("bucket-object-left-out", text, place=str(path)))
    if (size := sum(found[name] for name in names)) > MAX_OBJECT:
        raise UnreadableError(path, f"has {size} bytes in the bucket, more than {MAX_OBJECT}")
    data = bytearray()
    for name in names:
        data += objects.read(f"{path}{SUFFIX}/{name}", found[name]).data
    return bytes(data) if names else None


def _newest(names: Iterable[str]) -> list[str]:
    """Returns the names of the segments of the last epoch and generation, in order."""
    segments = [segment for name in names if (segment := Segment.parse(name)) is not None]
    newest = max((segment.version for segment in segments), default=None)
    return [segment.name for segment in sorted(segments) if segment.version == newest]


def fetch_journal(objects: Objects, folder: Path, tell: Tell) -> None:
    """Copy the journal to `folder`, which is empty, for a reader.

    If the journal is missing or empty, make empty files for the archived segments and empty folders
    for the phases: they show that the job has a past.

    Raises:
        OSError: the bucket cannot be read, or the folder cannot be written.
    """
    journal = read_growing(objects, JOURNAL, tell)
    if journal is not None:
        (folder / JOURNAL).write_bytes(journal)
    if not journal:
        (folder / ARCHIVE).mkdir()
        for name in filter(is_segment, objects.list(ARCHIVE).objects):
            (folder / ARCHIVE / name).touch()
        for phase in filter(is_phase_folder, objects.list("").folders):
            (folder / phase).mkdir()


def epoch_after(objects: Objects) -> int:
    """Returns an epoch above all those under which the journal was written.

    The lease counts epochs, but a person may have removed the lease.
    """
    names = objects.list(f"{JOURNAL}{SUFFIX}").objects
    segments = [segment for name in names if (segment := Segment.parse(name)) is not None]
    return 1 + max((segment.epoch for segment in segments), default=0)


def fetch(objects: Objects, folder: Path, set_aside: str, tell: Tell) -> None:
    """Copy to `folder` what the job needs from the bucket to continue.

    A file here that only grows is set aside if neither copy is the beginning of the other, or if
    it is missing or empty in the bucket: it is renamed to
    `.<name>.<set_aside>-<number>`, the first such name that is free. The archive of the
    journal is set aside with the journal. Any other file is copied if its size differs.

    Two things are not copied: the archive, which stays in the bucket (see
    `adapters.stores.mirror.MirroredStorage`), and compiled programs (see
    `adapters.stores.shared_programs`).

    Raises:
        OSError: the bucket cannot be read, or the folder cannot be written.
    """
    names = objects.list("").folders
    phases = sorted(filter(is_phase_folder, names))
    for path in (JOURNAL, *(f"{phase}/{name}" for phase in phases for name in PHASE_FILES)):
        _fetch_growing(folder, path, read_growing(objects, path, tell), set_aside, tell)
    _fetch_metrics(objects, folder, tell)
    for place in (*phases, *([_DRILLS] if _DRILLS in names else [])):
        for name, size in sorted(objects.list(place).objects.items()):
            if name.startswith("."):
                continue  # not ours: `adapters.stores.mirror` copies no such name
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


def _fetch_growing(
    folder: Path, path: str, there: bytes | None, set_aside: str, tell: Tell
) -> None:
    """Copy a growing file, with the content `there`, from the bucket, unless ours continues it."""
    target = folder / path
    here = _content(target, folder)
    if here is not None and (there is None or not _continues(here, there)):
        _set_aside(target, set_aside, tell)
        if path == JOURNAL and (folder / ARCHIVE).is_dir():
            _set_aside(folder / ARCHIVE, set_aside, tell)
        here = None
    if there is not None and (here is None or len(there) > len(here)):
        _write(folder, target, there)


def _fetch_metrics(objects: Objects, folder: Path, tell: Tell) -> None:
    """Copy metrics.jsonl, unless ours is the bucket's or continues it. The job goes on without
    one that cannot be used."""
    target = folder / METRICS
    try:
        there, here = read_growing(objects, METRICS, tell), _content(target, folder)
    except UnreadableError as error:
        tell(Notice("bucket-object-left-out", f"left out: {error}", place=METRICS))
        return
    if there is not None and (here is None or not here.startswith(there)):
        _write(folder, target, there)


def _set_aside(target: Path, under: str, tell: Tell) -> None:
    aside = removal.rename_numbered(target, f".{target.name}.{under}")
    text = f"{target.name} on this host does not match the bucket: set aside as {aside}"
    tell(Notice("file-set-aside", text, place=target.name))


def _is_a_name(name: str) -> bool:
    """True if a file on this host can have the name of this object, and a temporary file too."""
    return name.isprintable() and not name.startswith(".") and len(name.encode()) <= _MAX_NAME


def _size(target: Path) -> int | None:
    """Returns the size of a regular file in bytes; None: `target` is none."""
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


def _continues(here: bytes, there: bytes) -> bool:
    """True if one of the files is the beginning of the other: `here` on this host, `there` in the
    bucket. A file that is empty in the bucket is damaged: no content continues it."""
    return there.startswith(here) or (there != b"" and here.startswith(there))


def _write(folder: Path, target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    with removal.create_temporary(temporary, below=folder) as file:
        file.write(data)
    temporary.replace(target)
