"""The steps in a directory of checkpoints: which are committed, which are removed, and how a
damaged one is taken out of use.

The directory may hold things that are not this job's: older runs, copies, folders of any name. Only
what the job's ledger proves to be its own is removed (`trainer.ledger`,
`supervisor.protocol.removal`). Everything else is named in a warning and left in place, unless a
save needs its name: then it is moved aside.

On a disk a step gets its final name by an atomic rename, so a folder with a final name is never the
rest of a killed save. In a bucket, and in a mount of one, a step has its final name from the start
(`trainer.marked_steps`).
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from supervisor.protocol import removal
from supervisor.protocol.committed import committed_steps, is_committed
from supervisor.protocol.location import Uri
from supervisor.protocol.messages import NoticeCode
from supervisor.protocol.removal import NotOursError, Place
from supervisor.protocol.this_machine import is_posix
from trainer import bucket_paths
from trainer.ledger import FOREIGN, Entries, Ledger
from trainer.log import Warn, log
from trainer.manifest import MANIFEST, OTHERS, READING_MARK, DamagedError, read_manifest

CORRUPT = "corrupt"
_REASON = ".reason.txt"
TEMPORARY = ".orbax-checkpoint-tmp"
REMOVED = {
    Place.KILLED_SAVE: "its save was never committed",
    Place.STEP: "a kill left it half removed",
}
_EVICTED = ".supervise-evicted-"
_NAME_OF_EVICTED = re.compile(rf"{re.escape(_EVICTED)}\d+-[0-9a-f]{{32}}")
"""The name of a folder that is being evicted, which nobody else would choose. A ledger of a bucket
has plain names such as `5`, which may be anybody's."""
_NAMED = 10
"""Most names in one message."""


class NoUsableCheckpointError(RuntimeError):
    """All checkpoints are damaged. Only a person may decide to start from the beginning."""


class ForeignCheckpointError(RuntimeError):
    """This job can restore none of the checkpoints, and some may not be its own: perhaps this is
    the wrong directory."""


class UnmarkedCheckpointError(RuntimeError):
    """A step in the directory is not committed, and may be somebody's copy: a save could
    overwrite it."""


class UnreadableCheckpointError(OSError):
    """Nobody can read now whether a step is committed. An older step is not used instead."""


class CheckpointSteps(Protocol):
    """The steps in one directory, most of them saved by earlier processes."""

    @property
    def directory(self) -> Path:
        """The directory that holds the steps."""
        ...

    @property
    def commits_by_rename(self) -> bool:
        """Whether a rename commits a step; otherwise a marker file does."""
        ...

    def committed(self) -> Iterator[tuple[int, Path]]:
        """Yield (step, path) of the committed steps, newest first.

        Raises:
            UnreadableCheckpointError: see there.
        """
        ...

    def clear(self, warn: Warn) -> None:
        """Remove what a killed save of this job has left, and tell people what is not this job's.

        Raises:
            UnmarkedCheckpointError: see there.
        """
        ...

    def begin(self, step: int, warn: Warn, loss: float | None = None) -> None:
        """Record durably that `step` is about to be saved, and its validation loss, and clear its
        names. `loss` is None if the step was not validated.

        Raises:
            UnmarkedCheckpointError: something has the step's name and cannot be moved.
        """
        ...

    def clear_final_name(self, step: int, warn: Warn) -> None:
        """Move away whatever has the final name of `step`, just before it is committed."""
        ...

    def drop_failed(self, step: int) -> bool:
        """Take what the failed save of `step` has left out of the way, though its threads may still
        write; returns whether that is done. False: only the end of this process ends them."""
        ...

    def mark_committed(self, step: int) -> None:
        """Record that `step`, whose save began last, was committed, and its validation loss."""
        ...

    def evict(self, keep: Keep, allow: Callable[[str], None], warn: Warn) -> None:
        """Remove this job's steps that `keep` and the pin do not spare, the oldest first. `allow`
        is called before each, with a description, and raises to refuse."""
        ...

    def rate(self, step: int, loss: float) -> None:
        """Record the validation loss of `step`, which was validated after its commit.

        Raises:
            OSError: this cannot be recorded.
        """
        ...

    def pin(self, step: int) -> None:
        """Keep `step` until another one is pinned.

        Raises:
            OSError: this cannot be recorded.
        """
        ...

    @property
    def checked(self) -> int | None:
        """The last step at which a check for silent corruption passed, or at which checks began;
        None: there are no checks."""
        ...

    @property
    def may_begin_anew(self) -> bool:
        """Whether the job is rolled back to before its first step."""
        ...

    def check_passed(self, step: int | None) -> None:
        """Record that a check of `step` passed, or that checks begin there; None: that there are
        none any more.

        Raises:
            OSError: this cannot be recorded.
        """
        ...

    def roll_back(self, warn: Warn) -> None:
        """Record that a check failed, and take the steps of this job out of use that were saved
        after the last one that passed. If it is killed half-way, the next `clear` completes it.

        Raises:
            OSError: this cannot be recorded.
        """
        ...

    def is_own(self, step: int, path: Path) -> bool:
        """Whether the committed step in `path`, damaged or not, is known to be this job's.

        Raises:
            OSError: it cannot be read now.
        """
        ...

    def set_aside(self, path: Path, reason: str) -> str:
        """Take a damaged step of this job out of use; returns in words what became of it."""
        ...

    def damaged(self) -> str | None:
        """Describe where damaged steps are and how to remove them; None: there are none."""
        ...


def steps_in(place: Path | Uri) -> CheckpointSteps:
    """Return the steps in `place`, by the commit rules of its file system or store."""
    from trainer.marked_steps import MarkedSteps

    path = bucket_paths.path_of(place)
    if bucket_paths.is_in_bucket(path) or not is_posix(path):
        return MarkedSteps(path)
    return RenamedSteps(path)


def set_aside(steps: CheckpointSteps, path: Path, reason: str, warn: Warn) -> None:
    """Take a damaged step out of use, and tell people."""
    done = steps.set_aside(path, reason)
    text = f"the checkpoint in {path} is damaged ({reason}): {done}"
    warn(text, NoticeCode.CHECKPOINT_DAMAGED, step_of(path.name))


def as_unreadable_errors(found: Iterator[tuple[int, Path]]) -> Iterator[tuple[int, Path]]:
    """Yield `found`, with an OSError turned into an `UnreadableCheckpointError`."""
    try:
        yield from found
    except OSError as error:
        raise UnreadableCheckpointError(
            error.errno,
            f"{error.strerror or error}: cannot tell whether this checkpoint is committed, so no "
            "older one is restored: make it readable, or move it away",
            error.filename,
        ) from error


def step_of(name: str) -> int | None:
    """Parse the step from a folder's name of our own form; None: it has another form."""
    return int(name) if name.isascii() and name.isdecimal() and str(int(name)) == name else None


def is_committed_now(path: Path, *, posix: bool) -> bool | None:
    """Return what `is_committed` returns; None: it cannot be read now."""
    try:
        return is_committed(path, posix=posix)
    except OSError:
        return None


def tell_foreign(ledger: Ledger, names: Iterable[str], directory: Path, warn: Warn) -> None:
    """Tell people, once for each name, what in `directory` is not this job's."""
    new = sorted(set(names) - ledger.entries.warned)
    if new:
        shown = ", ".join(repr(name) for name in new[:_NAMED])
        more = f" and {len(new) - _NAMED} more" if len(new) > _NAMED else ""
        text = (
            f"{directory} has what this job did not save: {shown}{more}. It is never removed, and "
            "does not count for `keep`"
        )
        warn(text, NoticeCode.CHECKPOINTS_FOREIGN)
        with ledger.change() as entries:
            entries.warned |= set(new)


def forget(ledger: Ledger) -> None:
    """Record in the ledger that no save and no removal of an earlier process is going on."""
    if ledger.entries.saving is not None or ledger.entries.evicting:
        with ledger.change() as entries:
            entries.saving = entries.loss = None
            entries.evicting.clear()


@dataclass(frozen=True, slots=True)
class Keep:
    """Which steps of a job are kept."""

    newest: int
    """So many of the newest ones."""
    every: int | None = None
    """And all multiples of this; None: no others."""
    best: bool = False
    """And the one with the lowest validation loss; of several, the first."""

    def spared(self, steps: Collection[int], entries: Entries) -> set[int]:
        """Return which of `steps`, those that are there, are kept however old they are: because of
        this, to replay a failure (`Entries.pinned`), or to roll back to (`Entries.checked`)."""
        losses = [(loss, step) for step, loss in entries.losses.items() if step in steps]
        best = min(losses)[1] if self.best and losses else None
        checked = -1 if entries.checked is None else entries.checked
        trusted = max((step for step in steps if step <= checked), default=None)
        needed = (best, entries.pinned, trusted)
        return {
            step
            for step in steps
            if step in needed or (self.every is not None and step % self.every == 0)
        }


def set_untrusted_aside(steps: CheckpointSteps, ledger: Ledger, warn: Warn) -> None:
    """Take the steps out of use that were saved after the last check that passed, if one failed."""
    trusted = ledger.entries.rolled_back
    if trusted is None:
        return
    after = f"the last check for silent corruption that passed, of step {trusted}"
    for step, path in list(steps.committed()):
        if step > trusted and steps.is_own(step, path):
            reason = f"it was saved after {after}, and the next one failed"
            done = steps.set_aside(path, reason)
            text = f"the checkpoint in {path} is not trusted ({reason}): {done}"
            warn(text, NoticeCode.CHECKPOINT_NOT_TRUSTED, step)


def steps_to_evict(
    ledger: Ledger, found: Iterable[tuple[int, Path]], keep: Keep
) -> list[tuple[int, Path]]:
    """Return this job's steps that are not kept, oldest first."""
    own = [(step, path) for step, path in found if ledger.owns(step, path)]
    old = sorted(own, reverse=True)[keep.newest :][::-1]
    spared = keep.spared(dict(own), ledger.entries)
    return [(step, path) for step, path in old if step not in spared]


def is_expected_in(path: Path) -> Callable[[str], bool]:
    """Return a predicate: whether a save creates a file or folder of this name, relative to the
    step `path`."""
    try:
        manifest = read_manifest(path)
    except DamagedError:
        manifest = None
    if manifest is None:
        return lambda name: True
    folders = {str(folder) for name in manifest.files for folder in Path(name).parents}
    known = {*manifest.files, *folders}
    marks = re.compile(rf"{READING_MARK}\d+")
    return lambda name: (
        name in known or marks.fullmatch(name) is not None or Path(name).name in OTHERS
    )


@contextmanager
def evicting(step: int, ledger: Ledger, warn: Warn) -> Iterator[None]:
    """Context manager for the removal of `step`: takes it out of the ledger afterwards, unless the
    removal failed and is tried again later."""
    try:
        yield
    except NotOursError as error:
        text = f"step {step} is kept for good: {error}"
        warn(text, NoticeCode.CHECKPOINT_NOT_REMOVED, step)
    except OSError as error:
        text = (
            f"step {step} could not be removed ({error}): this is tried again after the next save"
        )
        warn(text, NoticeCode.CHECKPOINT_NOT_REMOVED, step)
        return
    with ledger.change() as entries:
        entries.forget(step)


def _is_named_as_a_step(entry: Path) -> bool:
    name = entry.name
    return TEMPORARY in name or name.startswith(_EVICTED) or step_of(name) is not None


class RenamedSteps:
    """CheckpointSteps on a disk: committed by a rename."""

    commits_by_rename = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ledger = Ledger(directory)

    def committed(self) -> Iterator[tuple[int, Path]]:
        """See `CheckpointSteps`."""
        return as_unreadable_errors(committed_steps(self.directory))

    def clear(self, warn: Warn) -> None:
        """See `CheckpointSteps`."""
        if problem := self._ledger.load():
            warn(problem, NoticeCode.LEDGER_UNUSABLE)
        entries, foreign = self._ledger.entries, list[str]()
        for entry in sorted(filter(_is_named_as_a_step, self.directory.iterdir())):
            is_evicted = entry.name in entries.evicting and _NAME_OF_EVICTED.fullmatch(entry.name)
            if entry.name == self._killed or is_evicted:
                self._remove(entry, warn)
            elif not self._is_own(entry, warn):
                foreign.append(entry.name)
        forget(self._ledger)
        tell_foreign(self._ledger, foreign, self.directory, warn)
        set_untrusted_aside(self, self._ledger, warn)

    def _is_own(self, entry: Path, warn: Warn) -> bool:
        """Whether `entry` is this job's. If the ledger has it and its commit marker is missing, it
        is damaged."""
        step, entries = step_of(entry.name), self._ledger.entries
        committed = is_committed_now(entry, posix=True)
        if step is None or committed is None:
            return step in entries.committed
        if committed and step == entries.saving and not self._exists(self._killed):
            self.mark_committed(step)  # the saving process was killed after the commit
        elif not committed and step in entries.committed:
            set_aside(self, entry, "the mark of its commit is gone", warn)
        else:
            return committed and step in entries.committed
        return True

    @property
    def _killed(self) -> str | None:
        """The name of the folder that a killed save has left; None: no save was going on."""
        saving = self._ledger.entries.saving
        return None if saving is None else f"{saving}{TEMPORARY}"

    def begin(self, step: int, warn: Warn, loss: float | None = None) -> None:
        """See `CheckpointSteps`."""
        for name in (f"{step}{TEMPORARY}", f"{step}"):
            self._move_away(name, warn)
        self._ledger.begin(step, loss)

    def clear_final_name(self, step: int, warn: Warn) -> None:
        """See `CheckpointSteps`."""
        self._move_away(f"{step}", warn)

    def drop_failed(self, step: int) -> bool:
        """See `CheckpointSteps`. What cannot be removed now is removed by the next process."""
        if self._exists(f"{step}"):  # the error came after the commit
            self.mark_committed(step)
            return True
        name = self._name_for_eviction(step)
        try:
            removal.remove_tree(
                Place.KILLED_SAVE,
                self.directory / f"{step}{TEMPORARY}",
                below=self.directory,
                is_ours=lambda: True,
                renamed_to=name,
            )
        except OSError as error:
            log.info("failed-save-left", step=step, error=str(error))
        self._forget_if_gone(name)
        return not self._exists(f"{step}{TEMPORARY}")

    def _name_for_eviction(self, step: int) -> str:
        """Return a unique name for what is to be removed, recorded in the ledger."""
        name = f"{_EVICTED}{step}-{uuid.uuid4().hex}"
        with self._ledger.change() as entries:
            entries.evicting.add(name)
        return name

    def _forget_if_gone(self, name: str) -> None:
        if not self._exists(name):
            with self._ledger.change() as entries:
                entries.evicting.discard(name)

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
        """See `CheckpointSteps`. Each step is renamed first, to a unique name that is recorded in
        the ledger before."""
        for step, path in steps_to_evict(self._ledger, committed_steps(self.directory), keep):
            allow(f"the eviction of step {step}")
            name = self._name_for_eviction(step)
            with evicting(step, self._ledger, warn):
                removal.remove_tree(
                    Place.STEP,
                    path,
                    below=self.directory,
                    is_ours=partial(self._ledger.owns, step, path),
                    is_expected=is_expected_in(path),
                    renamed_to=name,
                )
            self._forget_if_gone(name)

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
        """See `CheckpointSteps`: moves it into a folder whose name cannot be taken for a step."""
        self._ledger.unrate(int(path.name))
        moved = removal.set_aside(path, CORRUPT, below=self.directory)
        with moved.with_name(f"{moved.name}{_REASON}").open("x", encoding="utf-8") as file:
            file.write(f"{reason}\n")
        return f"moved to {CORRUPT}/{moved.name}"

    def damaged(self) -> str | None:
        """See `CheckpointSteps`."""
        corrupt = self.directory / CORRUPT
        names = sorted(filter(self._was_set_aside, corrupt.iterdir())) if corrupt.is_dir() else []
        if not names:
            return None
        listed = ", ".join(path.name for path in names)
        return (
            f"remove what was moved to {corrupt} ({listed}, each with its reason beside it) to "
            f"train from the beginning. A step moved back without its {MANIFEST} is restored "
            "unverified"
        )

    def _was_set_aside(self, path: Path) -> bool:
        """Whether we, and not a person, moved `path` into the folder for damaged steps. If we were
        killed in between, the file with the reason is missing."""
        step = step_of(path.name.rpartition("-")[0])
        if step is None or path.name.endswith(_REASON):
            return False
        reason = path.with_name(f"{path.name}{_REASON}")
        return os.path.lexists(reason) or self._ledger.owns(step, path)

    def _exists(self, name: str | None) -> bool:
        return name is not None and os.path.lexists(self.directory / name)

    def _move_away(self, name: str, warn: Warn) -> None:
        try:
            moved = removal.set_aside(self.directory / name, FOREIGN, below=self.directory)
        except FileNotFoundError:
            return
        text = (
            f"{self.directory / name} does not belong to this job, but has the name of a step that "
            f"is about to be saved: moved to {moved.relative_to(self.directory)}"
        )
        warn(text, NoticeCode.FOREIGN_SET_ASIDE, step_of(name.removesuffix(TEMPORARY)))

    def _remove(self, entry: Path, warn: Warn) -> None:
        """Remove `entry`, which the ledger names."""
        place = Place.KILLED_SAVE if TEMPORARY in entry.name else Place.STEP
        log.info("step-removed", path=str(entry), reason=REMOVED[place])
        try:
            removal.remove_tree(place, entry, below=self.directory, is_ours=lambda: True)
        except NotOursError as error:
            warn(str(error), NoticeCode.CHECKPOINT_NOT_REMOVED)
