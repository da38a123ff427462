"""Brings a job from its bucket to this host, before it goes on here.

The bucket is the truth: another host may have had the job since it was last here. What this host
has besides, and the bucket did not get, is kept only where it continues what is there. Outputs of
attempts stay in the bucket: nobody needs them to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from supervisor.ports import Objects
from supervisor.protocol.segments import JOURNAL, RUN_LOG, SUFFIX, Segment, merged

_PHASE = "_restartable"
_FOLDERS = ("compile_cache", "drills")


def read_growing(objects: Objects, path: str, tell: Callable[[str], None]) -> bytes | None:
    """A file that is kept in segments, as far as it is whole; None where there is none.

    Raises:
        OSError: the bucket cannot be read.
    """
    merge = merged(objects.list(f"{path}{SUFFIX}").objects)
    for name in merge.torn:
        tell(f"{path}: the segment {name} does not hold as many bytes as it should: left out")
    if merge.beyond:
        missing = f"bytes {merge.end} to {merge.beyond[0].start}"
        tell(f"{path}: {missing} are missing in the bucket: what comes after them is left out")
    data = bytearray()
    for segment in merge.chain:
        data += objects.read(f"{path}{SUFFIX}/{segment.name}").data
    return bytes(data) if merge.chain else None


def epoch_after(objects: Objects) -> int:
    """An epoch above all under which the journal was written.

    The lease counts them, but a person may have removed it.
    """
    names = objects.list(f"{JOURNAL}{SUFFIX}").objects
    segments = [segment for name in names if (segment := Segment.parse(name)) is not None]
    return 1 + max((segment.epoch for segment in segments), default=0)


def fetch(objects: Objects, folder: Path, set_aside: str, tell: Callable[[str], None]) -> None:
    """Make `folder` hold what the bucket does, as far as the job needs it to go on.

    A file here that grew in another way than there, or that is not there any more, is set aside
    under its name and `set_aside`.

    Raises:
        OSError: the bucket cannot be read, or the folder not be written.
    """
    names = objects.list("").folders
    phases = sorted(name for name in names if name.endswith(_PHASE))
    for path in (JOURNAL, *(f"{phase}/{RUN_LOG}" for phase in phases)):
        _bring(folder / path, read_growing(objects, path, tell), set_aside, tell)
    for place in (*phases, *(name for name in _FOLDERS if name in names)):
        for name, size in sorted(objects.list(place).objects.items()):
            target = folder / place / name
            if not target.exists() or target.stat().st_size != size:
                _write(target, objects.read(f"{place}/{name}").data)


def _bring(target: Path, there: bytes | None, set_aside: str, tell: Callable[[str], None]) -> None:
    """Make a file that grows what it is in the bucket, or leave it where it is that and more."""
    here = target.read_bytes() if target.exists() else None
    if here is not None and (there is None or not _continues(here, there)):
        aside = target.with_name(f".{target.name}.{set_aside}")
        target.rename(aside)
        tell(f"{target.name} here is not the bucket's, and was set aside: {aside}")
        here = None
    if there is not None and len(there) > len(here or b""):
        _write(target, there)


def _continues(one: bytes, other: bytes) -> bool:
    """Whether one of them begins with all of the other."""
    return one.startswith(other) or other.startswith(one)


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(target)
