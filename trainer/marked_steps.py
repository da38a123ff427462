"""The steps in a bucket, or in a mount of one: a step has its name from the start, and only a
marker commits it (`protocol.committed`).

A step without the marker is a killed save, or somebody's copy of a step from a disk. The ledger
identifies a killed save. A copy above all committed steps is an error, because training on would
overwrite it. Moving a step in a bucket would copy all of it, and a kill in between would leave two
halves. So a damaged step stays in place: it gets a note with the reason, and loses its marker.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from supervisor.protocol import removal
from supervisor.protocol.committed import (
    MARKER,
    METADATA,
    committed_at,
    committed_steps,
    unmarked_warning,
)
from supervisor.protocol.messages import NoticeCode
from supervisor.protocol.reading import UnreadableError
from supervisor.protocol.removal import NotOursError, Place
from trainer import bucket_paths
from trainer.checkpoint_steps import (
    REMOVED,
    Keep,
    UnmarkedCheckpointError,
    as_unreadable_errors,
    evicting,
    forget,
    is_committed_now,
    is_expected_in,
    set_untrusted_aside,
    step_of,
    steps_to_evict,
    tell_foreign,
)
from trainer.ledger import Ledger
from trainer.log import Warn, log
from trainer.manifest import MANIFEST
from trainer.step_files import files_in

DAMAGED = "supervise_damaged.txt"
_EARLIER_NOTE = "supervise_saving.txt"
"""The file in which an earlier version of supervise noted the step that it was saving."""


_LAST = (METADATA, MANIFEST)
"""Files that are removed last: they prove that a step is this job's."""


class MarkedSteps:
    """Steps in a bucket or in a mount of one: committed by a marker."""

    commits_by_rename = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ledger = Ledger(directory)

    def committed(self) -> Iterator[tuple[int, Path]]:
        """See `CheckpointSteps`."""
        return as_unreadable_errors(committed_steps(self.directory, posix=False))

    def clear(self, warn: Warn) -> None:
        """See `CheckpointSteps`. Markers of damaged steps that a kill has left are removed."""
        if problem := self._ledger.load():
            warn(problem, NoticeCode.LEDGER_UNUSABLE)
        self._migrate_note()
        foreign, newest = list[str](), -1
        for step, entry in self._all():
            committed = is_committed_now(entry, posix=False)
            if (entry / DAMAGED).exists():
                if committed:
                    self._unmark(entry)
                continue
            newest = max(newest, step) if committed else newest
            is_ours = (
                self._is_own(step, entry) if committed else self._remove_if_ours(step, entry, warn)
            )
            if not is_ours:
                if not committed and step > newest and committed_at(entry) is not None:
                    raise UnmarkedCheckpointError(unmarked_warning(str(entry)))
                foreign.append(entry.name)
        forget(self._ledger)
        tell_foreign(self._ledger, foreign, self.directory, warn)
        set_untrusted_aside(self, self._ledger, warn)

    def _is_own(self, step: int, entry: Path) -> bool:
        """Whether the committed step is this job's."""
        if step == self._ledger.entries.saving:
            self.mark_committed(step)  # the saving process was killed after the commit
        return step in self._ledger.entries.committed

    def _remove_if_ours(self, step: int, entry: Path, warn: Warn) -> bool:
        """Remove the uncommitted `step` if the ledger shows that a killed save or removal of this
        job has left it; returns whether it shows that."""
        entries = self._ledger.entries
        is_killed = step == entries.saving
        is_evicted = entry.name in entries.evicting and self._ledger.owns(step, entry)
        if not (is_killed or is_evicted):
            return False
        place = Place.KILLED_SAVE if is_killed else Place.STEP
        log.info("step-removed", path=str(entry), reason=REMOVED[place])
        try:
            if is_killed:
                self._remove(place, entry, lambda: True)
            else:
                is_ours = partial(self._ledger.owns, step, entry)
                self._remove(place, entry, is_ours, is_expected_in(entry))
        except NotOursError as error:
            warn(str(error), NoticeCode.CHECKPOINT_NOT_REMOVED, step)
        with self._ledger.change():
            entries.forget(step)
        return True

    def begin(self, step: int, warn: Warn, loss: float | None = None) -> None:
        """See `CheckpointSteps`. A damaged step of this job with the same number is removed."""
        path = self.directory / f"{step}"
        if _is_in_the_way(path):
            if not ((path / DAMAGED).exists() and self._ledger.owns(step, path)):
                raise UnmarkedCheckpointError(
                    f"{path} is in the way of a save, and nothing proves that this job saved it: "
                    "move it away"
                )
            self._remove(Place.STEP, path, partial(self._ledger.owns, step, path))
        self._ledger.begin(step, loss)

    def clear_final_name(self, step: int, warn: Warn) -> None:
        """See `CheckpointSteps`. Nothing to do: the step has its final name from the start, and its
        marker is created only if there is none."""

    def drop_failed(self, step: int) -> bool:
        """See `CheckpointSteps`."""
        path = self.directory / f"{step}"
        if is_committed_now(path, posix=False):  # the error came after the commit
            self.mark_committed(step)
            return True
        try:
            self._remove(Place.KILLED_SAVE, path, lambda: True)
        except OSError as error:
            log.info("failed-save-left", step=step, error=str(error))
        return not _is_in_the_way(path)

    def mark_committed(self, step: int) -> None:
        """See `CheckpointSteps`."""
        self._ledger.mark_committed(step)

    def rate(self, step: int, loss: float) -> None:
        """See `CheckpointSteps`."""
        self._ledger.rate(step, loss)

    def pin(self, step: int) -> None:
        """See `CheckpointSteps`."""
        self._ledger.pin(step)

    def evict(self, keep: Keep, allow: Callable[[str], None], warn: Warn) -> None:
        """See `CheckpointSteps`. The marker goes first, so that half a step is never committed."""
        found = committed_steps(self.directory, posix=False)
        for step, path in steps_to_evict(self._ledger, found, keep):
            allow(f"the eviction of step {step}")
            with self._ledger.change() as entries:
                entries.evicting.add(path.name)
            with evicting(step, self._ledger, warn):
                is_ours = partial(self._ledger.owns, step, path)
                self._remove(Place.STEP, path, is_ours, is_expected_in(path))
            with self._ledger.change() as entries:
                entries.evicting.discard(path.name)

    @property
    def checked(self) -> int | None:
        """See `CheckpointSteps`."""
        return self._ledger.entries.checked

    @property
    def may_begin_anew(self) -> bool:
        """See `CheckpointSteps`."""
        return self._ledger.entries.rolled_back == 0

    def check_passed(self, step: int | None) -> None:
        """See `CheckpointSteps`."""
        self._ledger.check_passed(step)

    def roll_back(self, warn: Warn) -> None:
        """See `CheckpointSteps`."""
        self._ledger.roll_back()
        set_untrusted_aside(self, self._ledger, warn)

    def is_own(self, step: int, path: Path) -> bool:
        """See `CheckpointSteps`."""
        return self._ledger.may_own(step, path)

    def set_aside(self, path: Path, reason: str) -> str:
        """See `CheckpointSteps`. If it is killed half-way, the next `clear` completes it."""
        self._ledger.unrate(int(path.name))
        files_in(path).replace(
            DAMAGED,
            f"{reason}\n\nTo use it all the same, remove this, and put {MARKER} in its "
            "place.\n".encode(),
        )
        self._unmark(path)
        return f"it is not used any more, {DAMAGED} in it says why"

    def damaged(self) -> str | None:
        """See `CheckpointSteps`."""
        names = [entry.name for _, entry in self._all()[::-1] if (entry / DAMAGED).exists()]
        if not names:
            return None
        return (
            f"remove the damaged ones ({', '.join(names)} in {self.directory}; {DAMAGED} in each "
            "says why) to train from the beginning"
        )

    def _all(self) -> list[tuple[int, Path]]:
        """Return (step, path) of all entries with the name of a step, newest first."""
        try:
            entries = list(self.directory.iterdir())
        except FileNotFoundError:  # a bucket has no empty folders
            return []
        named = [(step, one) for one in entries if (step := step_of(one.name)) is not None]
        return sorted(named, reverse=True)

    def _migrate_note(self) -> None:
        """Move the note of an earlier version into the ledger."""
        try:
            noted = step_of(files_in(self.directory).read(_EARLIER_NOTE).decode().strip())
        except (FileNotFoundError, UnreadableError, UnicodeDecodeError):
            return
        if noted is None:
            return  # no note of ours
        if self._ledger.entries.saving is None:
            with self._ledger.change() as entries:
                entries.saving = noted
        self._remove_file(Place.EARLIER_NOTE, self.directory / _EARLIER_NOTE)

    def _unmark(self, path: Path) -> None:
        self._remove_file(Place.COMMIT_MARKER, path / MARKER)

    def _remove_file(self, place: Place, path: Path) -> None:
        if bucket_paths.is_in_bucket(path):
            bucket_paths.remove(
                place, self.directory, [str(path).removeprefix(f"{self.directory}/")]
            )
        else:
            removal.remove_file(place, path, below=self.directory)

    def _remove(
        self,
        place: Place,
        path: Path,
        is_ours: Callable[[], bool],
        is_expected: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """Remove a step; see `removal.remove_tree`."""
        if not bucket_paths.is_in_bucket(path):
            removal.remove_tree(
                place,
                path,
                below=self.directory,
                is_ours=is_ours,
                is_expected=is_expected,
                remove_first=(MARKER,),
                remove_last=_LAST,
            )
            return
        names = sorted(
            bucket_paths.objects(path), key=lambda name: (name in _LAST, name != MARKER, name)
        )
        if strange := [name for name in names if not is_expected(name)]:
            raise NotOursError(path, f"{strange[0]!r} in it is not ours")
        if not is_ours():
            raise NotOursError(path, "it was not committed when the ledger says")
        bucket_paths.remove(place, self.directory, [f"{path.name}/{name}" for name in names])


def _is_in_the_way(path: Path) -> bool:
    """Whether a save to `path` would mix with existing files, or follow a link."""
    if bucket_paths.is_in_bucket(path):
        return bool(list(files_in(path).names()))
    found = [path, *path.rglob("*")] if os.path.lexists(path) else []
    return any(one.is_symlink() or not one.is_dir() for one in found)
