"""Compares the newest steps in a directory with their manifests, before a program restores one.

It begins with the newest step, and ends with the first that is not damaged: a program restores the
newest, so an older one matters only if all newer ones are moved aside. A step without a manifest is
not damaged, since nothing is known against it. Steps from before the job (`earlier_steps`) are
passed over: nothing proves that the job's program saved them, or that it would restore them.

A step counts if it is committed, or has a manifest: then it was committed once, and what committed
it may be the very file that is gone. Programs that go by the name alone would restore it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.checkpoints.earlier_steps import form_of, is_earlier, read_earlier
from supervisor.checkpoints.step_manifest import (
    IsStopped,
    damage_of,
    is_saved_anew,
    manifest_file,
    manifest_folder,
    read_manifest,
    why_unavailable,
)
from supervisor.protocol.committed import is_committed, step_entries
from supervisor.protocol.messages import printable

IsOpen = Callable[[Collection[tuple[int, int]]], bool]
"""True if a process has one of the files, by device and inode, open for writing."""
_MAX_NAMED = 20
"""The most damaged files that are named."""


@dataclass(frozen=True, slots=True)
class DamagedStep:
    """A step with files that are not as they were committed."""

    step: int
    path: Path
    files: Mapping[str, str]
    """What is wrong with each damaged file, by its relative path."""

    @property
    def names(self) -> tuple[str, ...]:
        """The first damaged files, as people may read them."""
        return tuple(printable(name) for name in sorted(self.files)[:_MAX_NAMED])

    @property
    def reason(self) -> str:
        """What is wrong, in one line."""
        name = min(self.files)
        others = len(self.files) - 1
        more = f" ({others} more damaged file{'s' * (others > 1)})" if others else ""
        return f"{printable(name)} {self.files[name]}{more}"


@dataclass(frozen=True, slots=True)
class CheckedSteps:
    """What a look at the newest steps has found."""

    damaged: tuple[DamagedStep, ...] = ()
    """The damaged steps above `newest`, newest first."""
    newest: int | None = None
    """The newest step that is not damaged; None: there is none."""
    why_unverified: str | None = None
    """Why nothing is known about `newest`; None: it is as it was committed."""
    num_bytes: int = 0
    """The size of the verified step."""
    unavailable: tuple[int, str] | None = None
    """A recorded step of which nothing can be read now, and why: its disk may not be mounted. Then
    nothing else was found."""


def check_newest(
    directory: Path,
    model_dir: Path,
    is_stopped: IsStopped,
    is_open: IsOpen = lambda files: False,
) -> CheckedSteps:
    """Look for the newest step in `directory` that is not damaged.

    Raises:
        StoppedError: see `IsStopped`.
        OSError: the directory cannot be read now.
    """
    folder = manifest_folder(model_dir, directory)
    ours, earlier = _told_apart(directory, folder, model_dir)
    forms = {form_of(path.name): path.name for _, path in ours}
    if len(forms) > 1:
        names = ", ".join(map(printable, sorted(forms.values())[:_MAX_NAMED]))
        why = f"steps with names of several forms are there ({names}): whose they are is not known"
        return CheckedSteps(newest=ours[0][0], why_unverified=why)
    damaged = list[DamagedStep]()
    for step, path in ours:
        try:
            found = _check(step, path, folder, model_dir, is_stopped, is_open)
        except OSError as error:
            reason = f"it cannot be read now: {error.strerror or error}"
            return CheckedSteps(tuple(damaged), step, reason)
        match found:
            case DamagedStep():
                damaged.append(found)
            case CheckedSteps():
                return found if found.unavailable else replace(found, damaged=tuple(damaged))
    if damaged or not earlier:
        return CheckedSteps(tuple(damaged))
    return CheckedSteps(newest=earlier[0], why_unverified="it was there before this job began")


def _told_apart(
    directory: Path, folder: Path, model_dir: Path
) -> tuple[list[tuple[int, Path]], list[int]]:
    """Returns the steps that the job has committed, and those from before the job, newest first.

    Raises:
        OSError: the directory cannot be read now.
    """
    known = read_earlier(folder, below=model_dir) or {}
    ours, earlier = list[tuple[int, Path]](), list[int]()
    for step, path in step_entries(directory):
        try:
            has_manifest = os.path.lexists(manifest_file(folder, path.name))
            if not has_manifest and not is_committed(path):
                continue
            if not has_manifest and is_earlier(path, known):
                earlier.append(step)
                continue
        except OSError:  # if it is the newest one, its check says so
            pass
        ours.append((step, path))
    return ours, earlier


def _check(
    step: int,
    path: Path,
    folder: Path,
    model_dir: Path,
    is_stopped: IsStopped,
    is_open: IsOpen,
) -> CheckedSteps | DamagedStep | None:
    """Compare the step in `path` with its manifest; returns None if it does not count.

    Raises:
        StoppedError, OSError: see `IsStopped`; it cannot be read now.
    """
    manifest = read_manifest(manifest_file(folder, path.name), below=model_dir)
    if manifest is None:
        why = "it has no manifest"
        return CheckedSteps(newest=step, why_unverified=why) if is_committed(path) else None
    if not os.path.lexists(path):  # somebody has removed it meanwhile
        return None
    away = why_unavailable(path, manifest)
    if away is not None:
        return CheckedSteps(unavailable=(step, away))
    wrong = damage_of(path, manifest, is_stopped)
    if not wrong:
        return CheckedSteps(newest=step, num_bytes=manifest.num_bytes)
    if is_saved_anew(path, manifest):
        why = "it was saved again after its manifest was made"
        return CheckedSteps(newest=step, why_unverified=why) if is_committed(path) else None
    if is_open(_identities(path)):
        return CheckedSteps(newest=step, why_unverified="a process is writing to it")
    return DamagedStep(step, path, wrong)


def _identities(step: Path) -> set[tuple[int, int]]:
    """Returns device and inode of each file in `step`."""
    found = set[tuple[int, int]]()
    for folder, _, names in os.walk(step):
        for name in names:
            with suppress(OSError):  # it is gone
                status = os.lstat(os.path.join(folder, name))  # noqa: PTH118
                found.add((status.st_dev, status.st_ino))
    return found
