"""Checks the newest checkpoint of a program in a thread, and moves a damaged one aside.

A damaged step goes to a folder of model_dir, by one rename. Nothing may be added to the program's
own folder: a program that takes the largest of all names there for its step would not survive it.
Only where model_dir is on another disk, the folder is made beside the step.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from errno import EOPNOTSUPP, EXDEV
from functools import partial
from pathlib import Path

from supervisor.checkpoints.step_check import CheckedSteps, DamagedStep, IsOpen, check_newest
from supervisor.checkpoints.step_manifest import StoppedError, manifest_file, manifest_folder
from supervisor.protocol import removal
from supervisor.protocol.removal import Place
from supervisor.protocol.this_machine import is_posix

DAMAGED = "damaged_checkpoints"
"""The folder of model_dir that gets damaged steps."""
_BESIDE = "supervise_damaged_checkpoints"
"""The folder beside a step that gets it where model_dir is on another disk."""
_SUFFIX = ".damaged"
"""The end of the name of a damaged step. A name that ends with a number might be that of a step."""


class StepCheck:
    """Implements `handles.Check`."""

    def __init__(
        self, directory: Path, model_dir: Path, is_open: IsOpen = lambda files: False
    ) -> None:
        """Begin to check the newest step in `directory`. A step of which `is_open` says that a
        process writes to it is not damaged.

        Raises:
            OSError: no thread can be started.
        """
        self._ours, self._theirs = socket.socketpair()
        self.descriptor = self._ours.fileno()
        self._stopped = threading.Event()
        self._found: CheckedSteps | Exception = StoppedError()
        thread = threading.Thread(
            target=self._run, args=(directory, model_dir, is_open), name="step check", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as why:  # no more threads are allowed
            self._theirs.close()
            self._ours.close()
            raise OSError(0, str(why), str(directory)) from why

    def result(self) -> CheckedSteps:
        """See `handles.Check`."""
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def close(self) -> None:
        """See `handles.Check`."""
        self._stopped.set()
        self._ours.close()

    def _run(self, directory: Path, model_dir: Path, is_open: IsOpen) -> None:
        with self._theirs:  # its end is what makes ours readable
            try:
                if not is_posix(directory):
                    why = "a mounted bucket cannot move a damaged checkpoint aside"
                    raise OSError(EOPNOTSUPP, why, str(directory))
                self._found = check_newest(directory, model_dir, self._stopped.is_set, is_open)
            except Exception as error:
                self._found = error


def set_aside_damaged(damaged: DamagedStep, model_dir: Path) -> Path:
    """Move a damaged step to where no program looks for steps, with a note beside it that says why.
    Returns its new path. The note is written first.

    Its manifest is removed: if a person moves the step back, it counts.

    Raises:
        FileNotFoundError: it is gone already.
        OSError: it cannot be moved.
    """
    path = damaged.path
    wrong = "".join(f"{name!r} {why}\n" for name, why in sorted(damaged.files.items()))
    note = f"This was {path}.\n\n{wrong}\nTo use it all the same, move it back.\n"
    aside = partial(removal.set_aside, path, below=path.parent, suffix=_SUFFIX, note=note)
    try:
        moved = aside(DAMAGED, into=model_dir)
    except OSError as error:
        if error.errno != EXDEV:
            raise
        moved = aside(_BESIDE)
    for folder in (moved.parent, path.parent):
        _sync(folder)
    with suppress(OSError):  # what is left of a manifest whose step is gone, its keeper removes
        manifest = manifest_file(manifest_folder(model_dir, path.parent), path.name)
        removal.remove_file(Place.STEP_MANIFEST, manifest, below=model_dir)
    return moved


def _sync(folder: Path) -> None:
    """Write the entries of `folder` to the disk."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
