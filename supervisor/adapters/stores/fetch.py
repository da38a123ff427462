"""Brings a job from its bucket to this host, before it goes on here.

The bucket is the truth: another host may have had the job since it was last here. What this host
has besides, and the bucket did not get, is kept only where it continues what is there. Outputs of
attempts stay in the bucket: nobody needs them to go on.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

from supervisor.files import attempts
from supervisor.files.segments import ARCHIVE, JOURNAL, OF_A_PHASE, SUFFIX, Segment, merged
from supervisor.history.archive import is_segment
from supervisor.host.notice import Notice, Tell
from supervisor.ports import MAX_OBJECT, Objects
from supervisor.protocol import removal
from supervisor.protocol.reading import UnreadableError, read

_DRILLS = "drills"
_MAX_NAME = 240
"""Bytes; a file system takes 255, and a temporary name is longer."""


def read_growing(objects: Objects, path: str, tell: Tell) -> bytes | None:
    """Return a file that is kept in segments, as far as it is whole; None where it has no segment.
    Where its beginning is lost, return what is there: a journal is damaged then, and not new.

    Raises:
        OSError: the bucket cannot be read.
    """
    found = objects.list(f"{path}{SUFFIX}").objects
    merge = merged(found)
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
    """The names of the segments that were written last, in order."""
    segments = [segment for name in names if (segment := Segment.parse(name)) is not None]
    newest = max((segment.writing for segment in segments), default=None)
    return [segment.name for segment in sorted(segments) if segment.writing == newest]


def bring_journal(objects: Objects, folder: Path, tell: Tell) -> None:
    """Copy the journal to `folder`, which is empty, for a reader. Where the journal is missing or
    empty, make empty files for the archived segments and empty folders for the phases: they show
    that the job has a past.

    Raises:
        OSError: the bucket cannot be read, or the folder not be written.
    """
    journal = read_growing(objects, JOURNAL, tell)
    if journal is not None:
        (folder / JOURNAL).write_bytes(journal)
    if not journal:
        (folder / ARCHIVE).mkdir()
        for name in filter(is_segment, objects.list(ARCHIVE).objects):
            (folder / ARCHIVE / name).touch()
        for phase in filter(attempts.is_phase_folder, objects.list("").folders):
            (folder / phase).mkdir()


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
    under its name and `set_aside`; with the journal its archive. The archive stays in the bucket:
    see `adapters.stores.mirror.MirroredStorage`.

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
        _set_aside(target, set_aside, tell)
        if path == JOURNAL and (folder / ARCHIVE).is_dir():
            _set_aside(folder / ARCHIVE, set_aside, tell)
        here = None
    if there is not None and (here is None or len(there) > len(here)):
        _write(folder, target, there)


def _set_aside(target: Path, under: str, tell: Tell) -> None:
    aside = removal.rename(target, f".{target.name}.{under}")
    text = f"{target.name} here is not the bucket's, and was set aside: {aside}"
    tell(Notice("file-set-aside", text, place=target.name))


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


def _continues(here: bytes, there: bytes) -> bool:
    """Whether the file here and the one in the bucket are the same as far as both go. One that is
    empty in the bucket is damaged there: nothing goes on from it."""
    return there.startswith(here) or (there != b"" and here.startswith(there))


def _write(folder: Path, target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    with removal.temporary(temporary, below=folder) as file:
        file.write(data)
    temporary.replace(target)
