"""The steps in a directory of checkpoints: which are committed, which are cleared away, and how a
damaged one is taken out of use.

On a disk a rename puts a step in its place whole, and so moves it away. In a bucket, and in a mount
of one, a step has its name from the start and only a marker commits it (`protocol.committed`).
There what lacks the marker is a save that was killed, or somebody's copy of a step from a disk. So
before a save its step is noted beside the steps, until it is committed: what is noted is ours to
clear away, and what says itself that it was not committed; nothing else is. To move a step would be
to copy all of it, and a kill in between would leave two halves. So a damaged one gets a note that
says why, and loses its marker.
"""

# mypy: allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import orbax.checkpoint as ocp

from supervisor.protocol.committed import (
    MARKER,
    METADATA,
    committed_steps,
    is_committed,
    unmarked,
    was_committed,
)
from supervisor.protocol.location import Uri
from supervisor.protocol.mounts import is_posix
from trainer import bucket
from trainer.integrity import MANIFEST

Say = Callable[[str], None]
"""Tells a person one line."""

CORRUPT = "corrupt"
DAMAGED = "supervise_damaged.txt"
_SAVING = "supervise_saving.txt"


class NoUsableCheckpointError(RuntimeError):
    """There were checkpoints, and all of them are damaged: only a person may start afresh."""


class UnmarkedCheckpointError(RuntimeError):
    """A step above all committed ones is not committed, and may be somebody's copy."""


class Steps(Protocol):
    """The steps in one directory, most of which another process has left there."""

    @property
    def directory(self) -> Path:
        """Where they are."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """What Orbax's manager is told about the place."""
        ...

    def committed(self) -> Iterator[tuple[int, Path]]:
        """The committed ones, newest first."""
        ...

    def clear(self, say: Say) -> None:
        """Remove those that only look saved: Orbax would count them, and not save them again.

        Raises:
            UnmarkedCheckpointError: one of them may be somebody's.
        """
        ...

    def begin(self, step: int) -> None:
        """Take note that `step` is about to be saved."""
        ...

    def end(self) -> None:
        """It was committed."""
        ...

    def set_aside(self, path: Path, reason: str) -> str:
        """Take a damaged step out of use; what became of it, in words."""
        ...

    def damaged(self) -> str | None:
        """Where what was set aside is, and how to get rid of it; None where nothing was."""
        ...


def steps_in(place: Path | Uri) -> Steps:
    """The steps in `place`, by the rules that hold there."""
    path = bucket.path_of(place)
    if bucket.is_in_bucket(path) or not is_posix(path):
        return MarkedSteps(path)
    return RenamedSteps(path)


def set_aside(steps: Steps, path: Path, reason: str, say: Say) -> None:
    """Take a damaged step out of use, and say so."""
    done = steps.set_aside(path, reason)
    say(f"the checkpoint in {path} is damaged ({reason}): {done}")


class RenamedSteps:
    """Steps on a disk: committed by a rename."""

    options: Mapping[str, Any] = {"cleanup_tmp_directories": True}

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def committed(self) -> Iterator[tuple[int, Path]]:
        """See `Steps`."""
        return committed_steps(self.directory)

    def clear(self, say: Say) -> None:
        """See `Steps`. One with a manifest was committed, so something took its mark: that is
        damage."""
        for entry in self.directory.glob("[0-9]*"):
            if not entry.name.isdecimal() or not entry.is_dir() or is_committed(entry):
                continue
            if (entry / MANIFEST).exists():
                set_aside(self, entry, "the mark of its commit is gone", say)
                continue
            print(f"removing {entry}: its save was never committed", flush=True)
            shutil.rmtree(entry)

    def begin(self, step: int) -> None:
        """See `Steps`: a temporary name is note enough."""

    def end(self) -> None:
        """See `Steps`."""

    def set_aside(self, path: Path, reason: str) -> str:
        """See `Steps`: into a folder whose name nobody takes for a step."""
        corrupt = self.directory / CORRUPT
        corrupt.mkdir(exist_ok=True)
        names = (f"{path.name}-{number}" for number in count(1))
        name = next(name for name in names if not (corrupt / name).exists())
        path.rename(corrupt / name)
        (corrupt / f"{name}.reason.txt").write_text(reason + "\n", encoding="utf-8")
        return f"moved to {CORRUPT}/{name}"

    def damaged(self) -> str | None:
        """See `Steps`."""
        corrupt = self.directory / CORRUPT
        if not (corrupt.is_dir() and any(corrupt.iterdir())):
            return None
        return (
            f"remove {corrupt} (they are there, with the reasons) to train from the beginning. A "
            f"step moved back without its {MANIFEST} is restored unverified"
        )


class MarkedSteps:
    """Steps in a bucket or in a mount of one: committed by a marker."""

    options: Mapping[str, Any] = {
        "cleanup_tmp_directories": False,  # it would take copies without a marker too
        "atomicity_options": ocp.options.AtomicityOptions(
            mode=ocp.options.AtomicityMode.COMMIT_FILE
        ),
    }

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def committed(self) -> Iterator[tuple[int, Path]]:
        """See `Steps`."""
        return committed_steps(self.directory, posix=False)

    def clear(self, say: Say) -> None:
        """See `Steps`."""
        newest = next((step for step, _ in self._finished()), -1)
        noted = self._noted()
        for entry in self._uncommitted():
            if (entry / DAMAGED).exists():
                continue
            if entry.name == noted or _says_it_was_not_committed(entry):
                print(f"removing {entry}: its save was never committed", flush=True)
                _remove(entry)
            elif int(entry.name) > newest:
                raise UnmarkedCheckpointError(unmarked(str(entry)))
        if noted is not None:
            self.end()

    def begin(self, step: int) -> None:
        """See `Steps`."""
        (self.directory / _SAVING).write_text(f"{step}\n")

    def end(self) -> None:
        """See `Steps`. Left by a kill, it would make somebody's copy of that step ours."""
        (self.directory / _SAVING).unlink(missing_ok=True)

    def set_aside(self, path: Path, reason: str) -> str:
        """See `Steps`. Killed in between, `clear` goes on."""
        (path / DAMAGED).write_text(
            f"{reason}\n\nTo use it all the same, remove this, and put {MARKER} in its place.\n"
        )
        (path / MARKER).unlink(missing_ok=True)
        return f"it is not used any more, {DAMAGED} in it says why"

    def damaged(self) -> str | None:
        """See `Steps`."""
        names = [entry.name for entry in self._uncommitted() if (entry / DAMAGED).exists()]
        if not names:
            return None
        return (
            f"remove the damaged ones ({', '.join(names)} in {self.directory}; {DAMAGED} in each "
            "says why) to train from the beginning"
        )

    def _finished(self) -> Iterator[tuple[int, Path]]:
        """The committed ones; of the damaged that are left, the marker is removed."""
        for step, path in self.committed():
            if (path / DAMAGED).exists():
                (path / MARKER).unlink(missing_ok=True)
            else:
                yield step, path

    def _uncommitted(self) -> Iterator[Path]:
        try:
            entries = sorted(self.directory.iterdir())
        except FileNotFoundError:  # a bucket has no empty folders
            return
        for entry in entries:
            if entry.name.isdecimal() and not is_committed(entry, posix=False):
                yield entry

    def _noted(self) -> str | None:
        try:
            return (self.directory / _SAVING).read_text().strip()
        except FileNotFoundError:
            return None


def _says_it_was_not_committed(entry: Path) -> bool:
    metadata = entry / METADATA
    return metadata.exists() and not was_committed(metadata.read_bytes())


def _remove(path: Path) -> None:
    if bucket.is_in_bucket(path):
        bucket.remove_tree(path)
    else:
        shutil.rmtree(path)
