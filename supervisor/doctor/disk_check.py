"""Checks of a model_dir in a folder: whether it can be written as the journal and checkpoints need
it, how much room there is, and who else may change it."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from supervisor.adapters.stores.lease import is_shared
from supervisor.adapters.stores.lock import LOCK
from supervisor.adapters.stores.permissions import find_exposures
from supervisor.config.quantities import size_text
from supervisor.doctor.examination import Finding, Level, note, ok, wrong
from supervisor.doctor.machine_checks import CLOCK, PERMISSIONS
from supervisor.files.segments import JOURNAL
from supervisor.model_dir_check import nearest_existing, probe_name, why_not_writable
from supervisor.model_dir_ownership import ModelDirError
from supervisor.protocol import removal
from supervisor.protocol.removal import Place
from supervisor.protocol.this_machine import file_system, is_mounted_bucket
from supervisor.start_notes import HOW_TO_KEEP_OUT

DISK = "disk"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOM, _MUCH_ROOM = 64 << 20, 1 << 30
"""Bytes: less is as good as a full disk; more is not full because of what we write."""
_ENTRIES = 1000
"""Free inodes: a checkpoint of Orbax may have as many files."""
_SLOW = 1.0
"""Seconds for a sync of a few bytes, above which saving is slow."""
_SKEW = 2.0
"""Seconds by which the file server's clock may differ: some round to whole seconds."""
_MAX_SKEW = 60.0


def disk(model_dir: Path) -> Iterator[Finding]:
    """Yields what is to be known of the file system of `model_dir`, which may not be there yet."""
    folder = nearest_existing(model_dir)
    yield _kind(folder)
    room = list(_room(folder))
    yield from room
    try:
        why = why_not_writable(model_dir, folder)
    except ModelDirError as error:
        remedy = "mount it for writing, or repair the disk (dmesg says what it is)"
        yield wrong(PERMISSIONS, str(error), remedy)
        return
    if why is not None:
        yield wrong(PERMISSIONS, f"{model_dir} {why}")
        return
    is_full = any(each.level is Level.WRONG for each in room)
    yield from _written(folder, is_full=is_full)


def _kind(folder: Path) -> Finding:
    kind = file_system(folder)
    if is_mounted_bucket(kind):
        text = f"{folder} is on {kind}, a mounted bucket: it has no atomic rename"
        return note(DISK, text, "give the bucket itself as model_dir (gs://..., s3://...)")
    if is_shared(folder):
        what = "other hosts may see it, so a lease keeps other supervisors out"
        return ok(DISK, f"{folder} is on {kind}: {what}")
    return ok(DISK, f"{folder} is on {kind}, a file system of this host")


def checkpoints(folder: Path, model_dir: Path | None) -> Iterator[Finding]:
    """Yields what room is left in `folder`, where a job has its checkpoints, if it is on another
    file system than `model_dir` (None: that is in a bucket). The program's folder is not written
    to."""
    if not folder.is_dir():
        yield note(DISK, f"{folder}, where the checkpoints were found, is no folder on this host")
    elif model_dir is None or folder.stat().st_dev != nearest_existing(model_dir).stat().st_dev:
        yield from _room(folder, f"{folder}, where the checkpoints are: ", "the checkpoints")


def _room(folder: Path, where: str = "", what: str = "model_dir") -> Iterator[Finding]:
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    text = f"{where}{size_text(free)} free"
    remedy = f"delete what is not needed, or use another disk for {what}"
    if free < _ROOM:
        yield wrong(DISK, f"{text}: the disk is full", remedy)
    elif free < _MUCH_ROOM:
        yield note(DISK, f"{text}: check that a checkpoint fits", remedy)
    else:
        yield ok(DISK, text)
    if status.f_files and status.f_favail < _ENTRIES:  # 0 files: they are not limited
        text = f"{where}{status.f_favail} inodes free: no more files can be made"
        yield wrong(DISK, f"{text}, whatever room there is", "delete folders of many small files")


def _written(folder: Path, *, is_full: bool) -> Iterator[Finding]:
    """Write, sync, rename and lock a small file in `folder`; yields what does not work. `is_full`:
    that the disk is full was told."""
    first, second = folder / probe_name(), folder / probe_name()
    try:
        began, wall = time.monotonic(), time.time()
        with first.open("xb") as file:
            file.write(b"supervise doctor\n")
            file.flush()
            os.fsync(file.fileno())
            written = os.fstat(file.fileno()).st_mtime
            locks = _can_lock(file.fileno())
        first.replace(second)
        _sync(folder)
        took = time.monotonic() - began
    except OSError as error:
        if error.errno not in _FULL or not is_full:
            remedy = "make room" if error.errno in _FULL else "use another disk for model_dir"
            text = f"a file in {folder} cannot be written, synced and renamed: {error.strerror}"
            yield wrong(DISK, text, remedy)
        return
    finally:
        for probe in (first, second):
            with suppress(OSError):
                removal.remove_file(Place.PROBE, probe, below=folder)
    if took > _SLOW:
        text = f"to write, sync and rename a file took {took:.1f} s: saving is slow here"
        yield note(DISK, text, "use a faster disk for model_dir")
    else:
        yield ok(DISK, f"a file can be written, synced and renamed ({1000 * took:.0f} ms)")
    if not locks:
        yield note(DISK, "files cannot be locked here (flock): a lease keeps supervisors apart")
    yield from _times(folder, written - wall)


def _can_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync(folder: Path) -> None:
    with suppress(PermissionError):  # we may write to it, but not open it
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _times(folder: Path, ahead: float) -> Iterator[Finding]:
    """Yields how the times of files and the clock agree; `ahead` is how much later the time of a
    new file is."""
    remedy = "synchronise the clocks of this host and of the file server (NTP)"
    if abs(ahead) > _SKEW:
        which = "ahead of" if ahead > 0 else "behind"
        text = f"the file server's clock is {abs(ahead):.0f} s {which} this host's"
        yield (wrong if abs(ahead) > _MAX_SKEW else note)(CLOCK, text, remedy)
        return
    with suppress(OSError):  # there is no job yet
        future = (folder / JOURNAL).stat().st_mtime - time.time()
        if future > _MAX_SKEW:
            text = (
                f"{folder / JOURNAL} was written {future:.0f} s in the future: the clock is wrong"
            )
            yield wrong(CLOCK, text, "set the clock: timedatectl set-ntp true, or chronyc makestep")


def exposures(model_dir: Path) -> Iterator[Finding]:
    """Yields whose model_dir is, and who else may change it."""
    if not model_dir.exists():
        yield ok(PERMISSIONS, f"{model_dir} is not there yet, and can be made")
        return
    owner, user = model_dir.stat().st_uid, os.geteuid()
    if owner == user:
        yield ok(PERMISSIONS, f"{model_dir} belongs to this user")
    else:
        text = f"{model_dir} belongs to uid {owner}, and this user is uid {user}"
        yield note(PERMISSIONS, text, "run a job as one user always: files of another stay theirs")
    if exposed := find_exposures(model_dir, LOCK, user=user):
        text = f"others may change the job's files: {', '.join(exposed)}"
        yield note(PERMISSIONS, text, HOW_TO_KEEP_OUT)
