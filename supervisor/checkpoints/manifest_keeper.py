"""The process that keeps the manifests of a program's steps, in the background.

It looks at the directory every second, and makes a manifest of each committed step that has none,
newest first, but not of those from before the job (`earlier_steps`). A manifest whose step the
program has deleted is removed. A step that changes while it is read gets no manifest; it is read
again later.

It is a process of its own, and needs nothing but the standard library. A thread of the supervisor
would not do: one with an idle priority may hold the interpreter's lock when it has to wait for a
CPU, and the main loop would wait with it. It runs at idle priority (SCHED_IDLE, which also means
idle I/O), so it takes nothing from the program beside it.

It ends by itself only where it can do nothing. What cannot be done is told once, as a line of its
output.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from supervisor.checkpoints.earlier_steps import EarlierSteps, is_earlier, note_earlier
from supervisor.checkpoints.step_manifest import (
    SUFFIX,
    is_saved_anew,
    make_manifest,
    manifest_file,
    manifest_folder,
    read_manifest,
    write_manifest,
)
from supervisor.protocol import removal
from supervisor.protocol.committed import committing_files, is_committed, step_entries
from supervisor.protocol.messages import printable
from supervisor.protocol.removal import Place
from supervisor.protocol.this_machine import file_system

_PAUSE = 1.0
"""Seconds between two looks."""
_RETRY = 30.0
"""Seconds before a step that could not be recorded is read again."""
_MAX_TOLD = 20
_NICEST = 19
_KEEPS_OPEN_FILES = ("nfs", "fuse")
"""How the types of file systems begin of which `keeps_open_files` is true."""

_Identity = tuple[tuple[int, int, int], ...]


class ManifestKeeper:
    """Keeps the manifests of the steps in one directory."""

    def __init__(
        self,
        directory: Path,
        model_dir: Path,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
        began: float = 0.0,
    ) -> None:
        """`say` gets each problem once. `began` is the Unix time at which the attempt began: if
        the directory is new to the job, what was committed before is not the job's."""
        self._directory = directory
        self._model_dir = model_dir
        self._folder = manifest_folder(model_dir, directory)
        self._say = say
        self._now = now
        self._began = began
        self._earlier: EarlierSteps | None = None
        self._recorded: dict[str, _Identity] = {}
        """The folders and the commits of the steps, by name, that have their manifest."""
        self._not_before: dict[str, float] = {}
        self._told: set[str] = set()

    def look(self) -> bool:
        """Record the newest step that has no manifest, and remove the manifests of deleted steps.

        Returns whether a step was read. It is one at a time, because a newer one may have come
        meanwhile.
        """
        try:
            paths = [path for _, path in step_entries(self._directory)]
            if self._earlier is None:
                self._earlier = note_earlier(
                    self._folder, paths, self._began, below=self._model_dir
                )
        except OSError as error:
            self._tell(f"no manifests are made now of the steps in {self._directory}", error)
            return False
        names = [path.name for path in paths]
        has_read = False
        for name in names:
            if self._now() < self._not_before.get(name, 0.0):
                continue
            try:
                has_read = self._record(self._directory / name)
            except FileNotFoundError:  # the program has deleted it meanwhile
                continue
            except OSError as error:
                self._not_before[name] = self._now() + _RETRY
                self._tell(f"{self._directory / name} gets no manifest now", error)
            if has_read:
                break
        if names:  # where all are gone, their disk may just not be mounted
            self._prune(set(names))
        return has_read

    def _record(self, step: Path) -> bool:
        """Make the manifest of `step` if it has none; returns whether it was read for that."""
        identity = _identity_of(step)
        if self._recorded.get(step.name) == identity or not is_committed(step):
            return False
        if is_earlier(step, self._earlier or {}):
            self._recorded[step.name] = identity
            return False
        place = manifest_file(self._folder, step.name)
        known = read_manifest(place, below=self._model_dir)
        if known is not None and not is_saved_anew(step, known):
            self._recorded[step.name] = identity
            return False
        manifest = make_manifest(step)
        if manifest is None:
            self._not_before[step.name] = self._now() + _RETRY
        else:
            write_manifest(place, manifest, below=self._model_dir)
            self._recorded[step.name] = identity
        return True

    def _prune(self, steps: set[str]) -> None:
        """Remove the manifests of all steps but `steps`."""
        kept = {manifest_file(self._folder, name).name for name in steps}
        self._recorded = {name: at for name, at in self._recorded.items() if name in steps}
        with suppress(OSError):  # a manifest that is left does no harm
            for name in {*os.listdir(self._folder)} - kept:  # noqa: PTH208
                if name.endswith(SUFFIX):
                    manifest = self._folder / name
                    removal.remove_file(Place.STEP_MANIFEST, manifest, below=self._model_dir)

    def _tell(self, what: str, error: OSError) -> None:
        text = printable(f"{what}: {error.strerror or error}")
        if text not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(text)
            self._say(text)


def main() -> None:
    """Keep the manifests of the steps in the directory that the second argument names, below the
    model_dir that the third names, in an attempt that began at the time that the fourth names (the
    first is the path of this package)."""
    directory, model_dir = map(Path, sys.argv[2:4])
    _run_when_idle()
    if keeps_open_files(kind := file_system(directory)):
        place = printable(str(directory))
        why = "a program may fail to delete there what somebody reads"
        _print(f"no manifests are made of the checkpoints in {place}, which is on {kind}: {why}")
        return
    keeper = ManifestKeeper(directory, model_dir, _print, began=float(sys.argv[4]))
    while True:
        if not keeper.look():
            time.sleep(_PAUSE)


def keeps_open_files(kind: str) -> bool:
    """Whether a file system of the type `kind` keeps a file in its folder, under another name, if
    it is open when it is deleted. A program that then deletes the folder gets an error."""
    return kind.startswith(_KEEPS_OPEN_FILES)


def _identity_of(step: Path) -> _Identity:
    """Returns what changes when another folder comes in the place of `step`, or when it is
    committed again in its place."""
    found = [step.lstat()]
    for name in committing_files(step.name):
        with suppress(FileNotFoundError, NotADirectoryError):
            found.append((step / name).lstat())
    return tuple((each.st_dev, each.st_ino, each.st_ctime_ns) for each in found)


def _run_when_idle() -> None:
    """Let this process run only where nobody else wants the CPU."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # a sandbox forbids it
        os.nice(_NICEST)


def _print(text: str) -> None:
    os.write(1, f"{text}\n".encode("utf-8", "backslashreplace"))
