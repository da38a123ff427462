"""Checks that model_dir can be written, by a file with a random name that is removed at once, and
that a new one holds no files of others under our names."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from errno import EACCES, EDQUOT, EIO, ENAMETOOLONG, ENOSPC, EPERM, EROFS, ESTALE
from pathlib import Path

from supervisor.adapters.stores.lock import LOCK, OWNER, is_foreign_owner_file
from supervisor.files.segments import JOURNAL
from supervisor.guard_keeper import is_foreign_record
from supervisor.host.process_record import NAME as PROCESSES
from supervisor.model_dir_ownership import ModelDirError
from supervisor.protocol import removal
from supervisor.protocol.removal import Place

_MAX_NAME = 255


def nearest_existing(path: Path) -> Path:
    """Returns `path`, or its nearest parent that exists."""
    return next(each for each in (path, *path.parents) if os.path.lexists(each))


def probe_name() -> str:
    """Returns a new name for a file or an object that is written as a test, and removed at once."""
    return f".writable.{uuid.uuid4().hex}"


def why_not_writable(model_dir: Path, folder: Path) -> str | None:
    """Try to make a file in `folder`, which is model_dir or a parent of it; returns why model_dir
    can never be written. None: it can be written, or only its disk is full.

    Raises:
        ModelDirError: it cannot be written now, but perhaps later.
    """
    if any(len(os.fsencode(part)) > _MAX_NAME for part in model_dir.parts):
        return why_refused(model_dir, folder, OSError(ENAMETOOLONG, os.strerror(ENAMETOOLONG)))
    probe = folder / probe_name()
    try:
        probe.touch(exist_ok=False)
        removal.remove_file(Place.PROBE, probe, below=folder)
    except OSError as error:
        return why_refused(model_dir, folder, error)
    return None


def why_refused(model_dir: Path, folder: Path, error: OSError) -> str | None:
    """Returns why `error`, which a write in `folder` has raised, means that model_dir can never be
    written; None: only its disk is full, which is handled later, when we own model_dir.

    Raises:
        ModelDirError: it cannot be written now, but perhaps later.
    """
    if error.errno in (EROFS, EIO, ESTALE):
        raise ModelDirError(f"{model_dir} cannot be written: {error.strerror}") from error
    if error.errno in (ENOSPC, EDQUOT):
        return None
    why = f": {_whose(model_dir)}" if error.errno in (EACCES, EPERM) else f" ({folder})"
    return f"cannot be written: {error.strerror}{why}"


def _whose(model_dir: Path) -> str:
    """Returns whose the directory is that we may not write, and what to do. It is `model_dir`, or
    the one above it in which `model_dir` would be made."""
    folder, user = nearest_existing(model_dir), os.geteuid()
    try:
        status = folder.stat()
        whose = f"belongs to uid {status.st_uid} (mode {stat.S_IMODE(status.st_mode):o})"
    except OSError as error:
        whose = f"cannot be looked at ({error.strerror})"
    if folder == model_dir:
        what = f"it {whose}"
    else:
        what = f"it is not there, and {folder}, in which it would be made, {whose}"
    return f"{what}, while supervise runs as uid {user}: give it to that user, or choose another"


def foreign_files(model_dir: Path) -> Iterator[str]:
    """Yields why a new model_dir is probably the wrong folder: a file there has the name of one of
    ours. Where a supervisor has run, such a file is renamed later."""
    if any(os.path.lexists(model_dir / name) for name in (JOURNAL, LOCK)):
        return
    for name, is_foreign in ((OWNER, is_foreign_owner_file), (PROCESSES, is_foreign_record)):
        try:
            why = "is not of supervise" if is_foreign(model_dir / name) else ""
        except FileNotFoundError:
            continue
        except OSError as error:
            why = f"cannot be read ({error.strerror})"
        if why:
            yield (
                f"holds {name}, which {why}, and the supervisor needs that name: move the file "
                "away, or choose another model_dir"
            )
