"""Checkpoints: the state and the data's position, saved by Orbax in the background.

Weights that training only reads (`TrainState.frozen`) need not be saved: they are made again as for
step 0, and their fingerprint in the checkpoint tells whether they are the same.

Orbax recognises a checkpoint by the directory's name. But a crash can leave the name without the
content, a disk can change the content, and a person can have made the directory. So this module
uses `supervisor.protocol.committed`, like the supervisor, and verifies with `trainer.manifest`. A
damaged checkpoint of this job is taken out of use (`trainer.checkpoint_steps`), and the one before
it is restored. A valid checkpoint that does not match the config, or may be another program's, is
kept, and an error says why it is not used.
"""

# mypy: allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import SaveDecisionPolicy

from supervisor.protocol.location import Uri
from supervisor.protocol.messages import NoticeCode
from trainer import distributed
from trainer.agreed_saves import AgreedSaves, GivenUpError
from trainer.bucket_paths import path_of
from trainer.checkpoint_steps import (
    CheckpointSteps,
    ForeignCheckpointError,
    Keep,
    NoUsableCheckpointError,
    set_aside,
    step_of,
    steps_in,
)
from trainer.config_fingerprint import Fingerprint, differences
from trainer.evaluation_progress import EvaluationNote, EvaluationProgress
from trainer.fence import Fence, FencedError
from trainer.log import Warn
from trainer.manifest import DamagedError, read_manifest, write_manifest
from trainer.retries import Retries, first_line
from trainer.saving import make_manager
from trainer.train_state import Params, TrainState
from trainer.verification import verified_read, verify_then_read
from trainer.weights_fingerprint import weights_fingerprint

Position = Mapping[str, Any]
"""The position of the data iterator, as its `get_state` returned it."""

MakeFrozen = Callable[[], Params]
"""Returns the frozen weights of step 0 again."""

T = TypeVar("T")

_ITEMS = ("params", "optimizer", "progress")
"""The items of every checkpoint of ours that has a state."""
FROZEN = "frozen"
"""The item with the frozen weights, and the key in `progress` of their fingerprint."""
ROLLOUT = "rollout"
"""The item with the batch that the model has made, if the objective learns from such."""
_ADAPTERS = "adapters"
"""The key in `progress` of what the fingerprint says of adapters."""
_MISMATCH = re.compile(
    r"not compatible with the stored shape|tree structures do not match|Structure mismatch|"
    r"Topology mismatch detected"
)
"""Orbax's messages about a valid checkpoint of another model or optimizer."""


class Restored(NamedTuple):
    """A restored checkpoint."""

    step: int
    state: TrainState
    position: Position
    evaluation: EvaluationProgress | None
    """The evaluation of `state` that was broken off; None: none is due."""


class _Failed(NamedTuple):
    """A save that failed for a reason that may pass."""

    step: int
    error: Exception
    again_at: float
    """When another save is due, by the monotonic clock."""


def _own_part(error: Exception) -> Exception | None:
    """Return what failed in this process, of the `error` of a save; None: it has only heard of
    it."""
    return error.own if isinstance(error, GivenUpError) else error


class NoCheckpointError(FileNotFoundError):
    """There is no committed checkpoint where the phase must start from one."""


class CheckpointMismatchError(ValueError):
    """The checkpoint is valid, but of another model or optimizer than the config describes."""


def newest_step(place: Path | Uri) -> int | None:
    """Return the newest committed step in `place`; None: there is none."""
    return next((step for step, _ in steps_in(place).committed()), None)


class CheckpointSaver:
    """Saves into one directory and restores from it, for one job at a time.

    Of several processes only the first one clears, verifies and moves, and writes the manifests.
    It tells the others which step is valid: otherwise all would read the same files, and one could
    move a step aside that another is reading.
    """

    def __init__(
        self,
        steps: CheckpointSteps,
        keep: int | Keep,
        fingerprint: Fingerprint,
        warn: Warn,
        policy: SaveDecisionPolicy | None = None,
        before_commit: Callable[[], None] = lambda: None,
        retries: Retries = Retries(),  # noqa: B008  # it is frozen
        *,
        saves_frozen: bool = True,
        has_state: bool = True,
    ) -> None:
        """Clear what a killed save has left among `steps`. Later, keep the newest `keep` steps of
        this job, or those that it names; `policy` decides when a save is due. `before_commit` is
        called in the thread that commits a step, just before that. `saves_frozen`: frozen weights
        are saved too. `has_state`: a checkpoint has a state, and not only its progress.

        Raises:
            UnmarkedCheckpointError: a step without a commit marker may be somebody's copy.
        """
        steps.directory.mkdir(parents=True, exist_ok=True)
        self._steps = steps
        self._keep = keep if isinstance(keep, Keep) else Keep(keep)
        self._fingerprint = fingerprint
        self._warn = warn
        self._policy = policy
        self._also_before_commit = before_commit
        self._saves_frozen = saves_frozen
        self._items = _ITEMS if has_state else _ITEMS[-1:]
        self._frozen_fingerprint: str | None = None
        self._retries = retries
        self._failures = 0
        """How many saves have failed in a row."""
        self._failed: _Failed | None = None
        """The last save, if it failed and another one is due."""
        self._agreed = AgreedSaves() if distributed.is_one_of_several() else None
        self.last_save_seconds = 0.0
        """Seconds from the begin of the last committed save until it was known to be committed: an
        upper bound of how long the save took."""
        self._began = 0.0
        self._saving: int | None = None
        self._recording: Thread | None = None
        self._fence = Fence.from_environment()
        self._fenced: FencedError | None = None
        if distributed.is_first():
            steps.clear(warn)

    def newest_verified(self) -> int | None:
        """Return the newest step whose files are intact; damaged newer ones are moved aside. None:
        nothing was ever committed, or nothing is trusted (`roll_back`).

        Raises:
            NoUsableCheckpointError: every checkpoint is damaged.
            ForeignCheckpointError: none can be restored, and some may be another program's.
            CheckpointMismatchError: it does not fit the config.
        """
        found = self._newest(lambda path: None) if distributed.is_first() else None
        return distributed.broadcast_from_first(None if found is None else found[0])

    def restore(
        self, abstract: TrainState, make_frozen: MakeFrozen | None = None
    ) -> Restored | None:
        """Restore the newest intact checkpoint. None: nothing was ever committed. `make_frozen` is
        called if frozen weights were not saved, or are not to be saved any more: a change of the
        config must not leave checkpoints behind whose frozen weights nobody can make again. Errors
        as `newest_verified`."""

        def read(path: Path) -> tuple[TrainState, Mapping[str, Any]]:
            return _restore(path, abstract, make_frozen, reads_frozen=self._saves_frozen)

        if distributed.is_one_of_several():
            step = self.newest_verified()
            if step is None:
                return None
            state, progress = read(self._steps.directory / str(step))
        else:
            found = self._newest(read)
            if found is None:
                return None
            step, (state, progress) = found
        return Restored(step, state, progress["data"], self._broken_off(step, progress))

    def broken_off_evaluation(self, step: int) -> EvaluationProgress | None:
        """Return how far the evaluation of the committed `step` has come, if it was broken off.
        None: none is due. A collective."""
        path = self._steps.directory / str(step)
        progress = _read(path, progress=ocp.args.JsonRestore()).progress
        return self._broken_off(step, progress)

    def _broken_off(self, step: int, progress: Mapping[str, Any]) -> EvaluationProgress | None:
        if progress.get("evaluation") is None:
            return None
        found = EvaluationProgress.parsed(progress["evaluation"])
        noted = self.evaluation_note(step).read()
        # A note that not all processes can see yet, on a shared disk, is not used.
        agreed = distributed.all_agree_on(
            None if noted is None else 2 * noted.next_batch + noted.is_done
        )
        if noted is not None and agreed:
            found = noted
        return None if found.is_done else found

    def evaluation_note(self, step: int) -> EvaluationNote:
        """Return the note about the evaluation of the committed `step`."""
        path = self._steps.directory / str(step)
        return EvaluationNote(path, lambda: self._allow(f"the note of step {step}'s evaluation"))

    def begin_checks(self, step: int) -> None:
        """Note that steps after `step` are checked for silent corruption: what was saved before is
        trusted, unless a check of an earlier attempt says how far. Errors as `rate`."""
        if distributed.is_first() and self._steps.checked is None:
            self.check_passed(step)

    def end_checks(self) -> None:
        """Note that no step is checked for silent corruption. Errors as `rate`."""
        if distributed.is_first() and self._steps.checked is not None:
            self.check_passed(None)

    def check_passed(self, step: int | None) -> None:
        """Record that a check of `step` for silent corruption passed. Errors as `rate`."""
        if distributed.is_first():
            self._allow("the record of a check")
            self._steps.check_passed(step)

    def roll_back(self) -> None:
        """Take the steps out of use that were saved after the last check that passed, and one that
        is being saved. Errors as `rate`."""
        if distributed.is_first():
            self._allow("the record of a check")
            self._steps.roll_back(self._warn)
        self.committed(wait=True)
        self.wait_for_manifest()
        if distributed.is_first():
            self._steps.roll_back(self._warn)

    def rate(self, step: int, loss: float) -> None:
        """Record the validation loss of `step`, which was validated after its commit.

        Raises:
            FencedError: the job has another owner.
            OSError: this cannot be recorded.
        """
        if distributed.is_first():
            self._allow(f"the validation loss of step {step}")
            self._steps.rate(step, loss)

    def due(self, step: int) -> bool:
        """Return whether `step` is to be saved. Every process asks at every step boundary, and all
        get the same answer."""
        is_due = bool(self._manager.should_save(step))
        if self._failed is not None and self._agreed is None:
            return not self.is_paused
        return is_due

    @property
    def is_paused(self) -> bool:
        """Whether no save is to begin yet, because one has failed just now. Several processes do
        not pause: each has its own clock."""
        if self._failed is None or self._agreed is not None:
            return False
        return time.monotonic() < self._failed.again_at

    def mismatch(self, step: int, how: str) -> CheckpointMismatchError:
        """Return the error that the checkpoint of `step` does not fit the config."""
        return CheckpointMismatchError(_mismatch(self._steps.directory / str(step), how))

    def restore_progress(self) -> tuple[int, Position, EvaluationProgress] | None:
        """Return the newest intact checkpoint of an evaluation: its step, its position, and how far
        it has come. None: nothing was ever committed. Errors as `newest_verified`."""
        step = self.newest_verified()
        if step is None:
            return None
        path = self._steps.directory / str(step)
        progress = _read(path, progress=ocp.args.JsonRestore()).progress
        return step, progress["data"], EvaluationProgress.parsed(progress["evaluation"])

    def save(
        self,
        state: TrainState | None,
        step: int,
        position: Position,
        loss: float | None = None,
        evaluation: EvaluationProgress | None = None,
    ) -> None:
        """Begin to save; `state` may be donated once this returns. Waits for an earlier save first.
        `loss` is the validation loss of `step`; None: it was not validated. `evaluation` is that of
        `step` if it was broken off. A `state` of None: only how far an evaluation has come.

        Raises:
            FencedError: the job has another owner.
        """
        self.wait_for_manifest()
        if self._failed is not None:
            self._drop(self._failed, step)
            self._failed = None
        if distributed.is_first():  # Orbax has the others wait for it before they write
            self._allow(f"the save of step {step}")
            self._steps.begin(step, self._warn, loss)
        self._began = time.monotonic()
        progress: dict[str, Any] = {"step": step, "data": position}
        if evaluation is not None:
            progress["evaluation"] = evaluation.encoded()
        if adapters := _of_adapters(self._fingerprint):
            progress[_ADAPTERS] = adapters
        items = ocp.args.Composite(**self._items_of(state, progress))
        try:
            self._manager.save(step, args=items, force=True)
            self._saving = step
        except Exception as error:
            if self._agreed is not None:
                raise
            self._save_failed(step, error)

    def _drop(self, failed: _Failed, step: int) -> None:
        """Remove what the `failed` save has left, before `step` is saved. Raises its error if that
        cannot be done."""
        if failed.step == step and not self._steps.commits_by_rename:
            self._end(failed)  # parts of it may still arrive, in the folder of this save
        if distributed.is_first() and not self._steps.drop_failed(failed.step):
            raise failed.error
        with suppress(Exception):  # it raises once more what made the save fail
            self._manager.close()
        del self._manager

    def _end(self, failed: _Failed) -> NoReturn:
        """Raise the error of the `failed` save. A process that has only heard of it waits for the
        one that failed, which ends, or it would be blamed."""
        own = _own_part(failed.error)
        if own is None:
            self.has(failed.step)
        raise own or failed.error

    def read_frozen(self, state: TrainState) -> None:
        """Compute the fingerprint of the frozen weights, which do not change: the first time takes
        long, and a save is not to wait for it."""
        if self._frozen_fingerprint is None:
            self._frozen_fingerprint = weights_fingerprint(state.frozen)

    def _items_of(self, state: TrainState | None, progress: dict[str, Any]) -> dict[str, Any]:
        if state is None:
            return {"progress": ocp.args.JsonSave(progress)}
        return {
            "params": ocp.args.StandardSave(state.params),
            "optimizer": ocp.args.StandardSave(state.optimizer),
            **self._frozen_items(state, progress),
            **({ROLLOUT: ocp.args.StandardSave(state.rollout)} if state.rollout else {}),
        }

    def _frozen_items(self, state: TrainState, progress: dict[str, Any]) -> dict[str, Any]:
        """Return the item `progress`, with the fingerprint of frozen weights if there are any; and
        these weights, if they are saved."""
        if not jax.tree.leaves(state.frozen):
            return {"progress": ocp.args.JsonSave(progress)}
        self.read_frozen(state)
        progress |= {FROZEN: self._frozen_fingerprint}
        items = {FROZEN: ocp.args.StandardSave(state.frozen)} if self._saves_frozen else {}
        return {"progress": ocp.args.JsonSave(progress), **items}

    def newest(self) -> int | None:
        """Return the newest committed step; None: there is none."""
        found = self._next_committed(None)
        return None if found is None else found[0]

    def has(self, step: int) -> bool:
        """Whether `step` is committed. (`newest` may be another program's step.) A collective: on
        a shared disk, not all processes see a commit at once."""
        is_there = any(step == one for one, _ in self._steps.committed())
        return bool(distributed.broadcast_from_first(int(is_there)))

    def _next_committed(self, below: int | None) -> tuple[int, Path] | None:
        """Return the newest committed step below the step `below` (None: of all)."""

        def found() -> tuple[int, Path] | None:
            steps = self._steps.committed()
            return next((one for one in steps if below is None or one[0] < below), None)

        return self._retries.run("the look for checkpoints", found)

    def committed(self, *, wait: bool = False, saves_next: bool = False) -> int | None:
        """Return the step of a save that was committed since the last call; None: none was. With
        `wait`, wait for the save that is going on. The manifest is written in the background; until
        then the checkpoint cannot be verified. If the save failed for a reason that may pass,
        another step is due soon; `saves_next` says that the caller then waits and saves at once.

        Raises:
            Exception: whatever made the save fail in the background.
        """
        if self._saving is None:
            return None
        if self._agreed is not None:
            self._agreed.check(wait=wait)
        if not wait and self._manager.is_saving_in_progress():
            return None
        if (error := self._error_of_save()) is not None:
            self._save_failed(self._saving, error, saves_next=saves_next)
            return None
        step, self._saving = self._saving, None
        self._failures = 0
        self.last_save_seconds = time.monotonic() - self._began
        if distributed.is_first():  # to it, a step is committed once all have written their parts
            self._recording = Thread(target=self._record, args=(step,), name="manifest")
            self._recording.start()
        return step

    def _error_of_save(self) -> Exception | None:
        """Wait for the save that is going on; returns the error for which another one may be made.
        Raises any other."""
        try:
            self._manager.wait_until_finished()  # raises the exception that made the save fail
        except Exception as error:
            if self._agreed is not None and not isinstance(error, GivenUpError):
                raise
            return error
        return None

    def _save_failed(self, step: int, error: Exception, *, saves_next: bool = False) -> None:
        """Have another save made: soon, or, of several processes, when the next one is due. Raises
        the error if it does not pass or came once too often.

        A process that has only heard of it raises nothing, or it would be blamed: it goes on until
        it waits for the one that failed, and is ended with it.
        """
        self._failures += 1
        own = _own_part(error)
        is_last = own is None and self._retries.are_used_up(self._failures)
        seconds = 0.0 if is_last else self._retries.seconds(self._failures, own or error)
        self._saving, self._failed = None, _Failed(step, error, time.monotonic() + seconds)
        if distributed.is_first() and not is_last:
            is_soon = self._agreed is None or saves_next
            when = f"in {seconds:.1f} s" if is_soon else "at the next step that is due"
            text = f"the save of step {step} failed ({first_line(error)}): it is tried again {when}"
            self._warn(text, NoticeCode.SAVE_FAILED, step)

    @property
    def has_failed(self) -> bool:
        """Whether the last save failed, and another one is due soon."""
        return self._failed is not None

    def wait_for_next_try(self) -> None:
        """Wait until a save that failed may be tried again."""
        if self._failed is not None:
            self._retries.sleep(max(0.0, self._failed.again_at - time.monotonic()))

    def pin_newest(self) -> None:
        """Keep the newest committed step, from which a failure can be replayed, until the next
        failure. An error is told: what failed is more important."""
        if not distributed.is_first():
            return
        try:
            if (step := self.newest()) is not None:
                self._allow(f"the pin of step {step}")
                self._steps.pin(step)
        except (OSError, FencedError) as error:
            text = f"no checkpoint is kept for a replay: {error}"
            self._warn(text, NoticeCode.CHECKPOINT_NOT_PINNED, None)

    def wait_for_manifest(self) -> None:
        """Wait until the manifest of the last committed save is written and old steps are removed.

        Raises:
            FencedError: the job has another owner, so old steps were not removed.
        """
        if self._recording is not None:
            self._recording.join()
            self._recording = None
        if self._fenced is not None:
            raise self._fenced

    def close(self) -> None:
        """Wait for saves and stop the threads that make them."""
        self._manager.close()
        self.wait_for_manifest()

    @cached_property
    def _manager(self) -> Any:
        """Orbax's manager, created when it is first used: at the first step boundary."""
        return make_manager(
            self._steps.directory,
            policy=self._policy,
            by_rename=self._steps.commits_by_rename,
            before_commit=self._before_commit,
            retries=self._retries if self._agreed is not None else None,
            agreed=self._agreed,
        )

    def _before_commit(self, step: int) -> None:
        """Check the fence and clear the step's name, in the committing thread, just before `step`
        is committed."""
        self._allow(f"the commit of step {step}")  # first: a step in the way may be the new owner's
        self._also_before_commit()
        self._steps.clear_final_name(step, self._warn)

    def _allow(self, what: str) -> None:
        if self._fence is not None:
            self._fence.check(what)

    def _record(self, step: int) -> None:
        versions = {"jax": jax.__version__, "orbax": ocp.__version__}
        try:
            path = self._steps.directory / str(step)
            self._retries.run(
                f"the manifest of step {step}",
                lambda: write_manifest(path, self._fingerprint, versions),
            )
        except Exception as error:  # what a store's client raises has no type in common
            text = f"step {step}: its manifest could not be written: {error}"
            self._warn(text, NoticeCode.MANIFEST_NOT_WRITTEN, step)
        try:
            self._steps.mark_committed(step)
            self._steps.evict(self._keep, self._allow, self._warn)
        except FencedError as error:
            self._fenced = error
        except Exception as error:
            text = f"old steps could not be removed after the save of step {step}: {error}"
            self._warn(text, NoticeCode.CHECKPOINT_NOT_REMOVED, step)

    def _newest(self, read: Callable[[Path], T]) -> tuple[int, T] | None:
        """Return the newest step that `read` can read, and what it returned. A damaged step of this
        job is set aside; a step of an unknown owner is skipped and left as it is, because it may be
        a valid checkpoint of another program."""
        skipped, below = list[str](), None
        while (found := self._next_committed(below)) is not None:
            step, path = found
            below = step
            load = partial(_load, path, self._fingerprint, self._warn, read, self._items, own=True)
            try:
                return step, self._retries.run(f"the read of step {step}", load)
            except DamagedError as damage:
                if self._steps.is_own(step, path):
                    set_aside(self._steps, path, str(damage), self._warn)
                else:
                    skipped.append(f"{path.name} ({damage})")
                    text = (
                        f"the checkpoint in {path} cannot be used ({damage}). It may belong to "
                        "another job, so it is skipped and not changed"
                    )
                    self._warn(text, NoticeCode.CHECKPOINT_SKIPPED, step)
        remedy = self._steps.damaged()
        if skipped:
            raise ForeignCheckpointError(_foreign(self._steps.directory, skipped, remedy))
        if remedy is not None and not self._steps.may_begin_anew:
            raise NoUsableCheckpointError(
                f"every checkpoint is damaged: put a good copy in place, or {remedy}"
            )
        return None


def newest_adapters(place: Path | Uri) -> Fingerprint:
    """Return what the fingerprint of the newest committed step in `place` says of its adapters;
    empty: it has none, or there is no step. If it was killed before its manifest was written, the
    step itself says it. A collective."""
    found = next(steps_in(place).committed(), None)
    if found is None:
        return {}
    with suppress(DamagedError):  # told where the step is read
        if (manifest := read_manifest(found[1])) is not None:
            return _of_adapters(manifest.fingerprint)
        with suppress(Exception):  # as well
            progress = _read(found[1], progress=ocp.args.JsonRestore()).progress
            return dict(progress.get(_ADAPTERS, {}))
    return {}


def _of_adapters(fingerprint: Fingerprint) -> Fingerprint:
    """Return what `fingerprint` says of adapters; empty: there are none."""
    if fingerprint.get("lora.rank") is None:
        return {}
    return {key: value for key, value in fingerprint.items() if key.startswith("lora.")}


def restore_parts(
    place: Path | Uri, parts: dict[str, Any], fingerprint: Fingerprint, warn: Warn
) -> tuple[int, dict[str, Any]]:
    """Restore `parts` of the newest committed step in `place`; returns (step, parts).

    `parts` maps names of `TrainState`'s fields to their abstract trees. The place belongs to
    another phase: nothing in it is moved, and no older step is used if the newest one is damaged.

    Raises:
        NoCheckpointError: nothing is committed there.
        NoUsableCheckpointError: the newest step is damaged, or another program's.
        CheckpointMismatchError: it does not fit the config.
    """
    found = next(steps_in(place).committed(), None)
    if found is None:
        raise NoCheckpointError(
            f"start_from: no committed checkpoint in {place}: the phase to start from must "
            "have saved one"
        )
    step, path = found
    if FROZEN in parts and not (path / FROZEN).is_dir():
        raise NoUsableCheckpointError(
            f"start_from: the checkpoint in {path} holds the adapters of init.lora without their "
            "base: train that phase with init.checkpoint.save_frozen: true"
        )
    items = {name: ocp.args.StandardRestore(tree) for name, tree in parts.items()}
    try:
        restored = _load(
            path, fingerprint, warn, lambda path: _read(path, **items), items, own=False
        )
    except DamagedError as damage:
        raise NoUsableCheckpointError(
            f"start_from: the checkpoint in {path} cannot be used ({damage}); it belongs to "
            "another phase and is left as it is: put a good copy in its place, or train that "
            "phase again"
        ) from damage
    return step, {name: restored[name] for name in parts}


def _load(
    path: Path,
    fingerprint: Fingerprint,
    warn: Warn,
    read: Callable[[Path], T],
    items: Iterable[str],
    *,
    own: bool,
) -> T:
    """Read and verify `items` of the committed checkpoint in `path`; returns what `read` returns.
    `own`: it is this job's, so marks may be written into it.

    An exception of `read` means damage only if there is no manifest. With one, the files are as
    committed, so another fault caused it; to call that damage would move one good checkpoint after
    the other aside.

    Raises:
        DamagedError: the files are not what was committed.
        CheckpointMismatchError: it is valid, but does not fit the config.
    """
    manifest = read_manifest(path)
    if manifest is None:
        if lacking := [item for item in items if not (path / item).is_dir()]:
            raise DamagedError(f"cannot be restored: there is no {', no '.join(lacking)} in it")
        text = f"the checkpoint in {path} has no manifest: it is used unverified"
        warn(text, NoticeCode.CHECKPOINT_UNVERIFIED, step_of(path.name))
    else:
        different = differences(manifest.fingerprint, fingerprint)
        if different:
            raise CheckpointMismatchError(_mismatch(path, "; ".join(different), own=own))
    try:
        if manifest is None:
            return read(path)
        if not own:
            return verify_then_read(path, manifest, read)
        return verified_read(path, manifest, read, warn)
    except (DamagedError, CheckpointMismatchError, NoCheckpointError, NoUsableCheckpointError):
        raise
    except Exception as error:
        if _MISMATCH.search(str(error)):
            raise CheckpointMismatchError(_mismatch(path, str(error), own=own)) from error
        if manifest is None and _suggests_damage(error):
            first = next(iter(str(error).splitlines()), "")
            raise DamagedError(f"cannot be restored: {type(error).__name__}: {first}") from error
        raise


def _foreign(directory: Path, skipped: Sequence[str], remedy: str | None) -> str:
    own = "" if remedy is None else f" This job's own are damaged: to do without them, {remedy}."
    return (
        f"no checkpoint in {directory} can be restored, and some are not known to be this job's: "
        f"{'; '.join(skipped)}. They may be another program's, and are left as they are: move "
        f"them away, or choose another trainer.init.checkpoint.directory.{own}"
    )


def _mismatch(path: Path, how: str, *, own: bool = True) -> str:
    whose = "" if own else "start_from: "
    return f"{whose}the checkpoint in {path} does not fit the config: {how}"


def _suggests_damage(error: Exception) -> bool:
    """Whether damaged files can cause `error`: it is not about memory, devices or permissions."""
    if isinstance(error, OSError):
        return error.errno in (None, errno.ENOENT, errno.ENOTDIR, errno.EIO)
    return not isinstance(error, MemoryError | jax.errors.JaxRuntimeError)


def restore(
    place: Path | Uri, step: int, abstract: TrainState, make_frozen: MakeFrozen | None = None
) -> tuple[TrainState, Position]:
    """Restore state and data position of the committed `step` without verification, with the
    shapes and shardings of `abstract`."""
    state, progress = _restore(path_of(place) / str(step), abstract, make_frozen)
    return state, progress["data"]


def _restore(
    path: Path, abstract: TrainState, make_frozen: MakeFrozen | None, *, reads_frozen: bool = True
) -> tuple[TrainState, Mapping[str, Any]]:
    needs_frozen = bool(jax.tree.leaves(abstract.frozen))
    if abstract.rollout and not (path / ROLLOUT).is_dir():
        how = "it was made without a batch of completions (of init.grpo)"
        raise CheckpointMismatchError(_mismatch(path, how))
    rollout = {ROLLOUT: ocp.args.StandardRestore(abstract.rollout)} if abstract.rollout else {}
    is_read = needs_frozen and (reads_frozen or make_frozen is None) and (path / FROZEN).is_dir()
    restored = _read(
        path,
        params=ocp.args.StandardRestore(abstract.params),
        optimizer=ocp.args.StandardRestore(abstract.optimizer),
        progress=ocp.args.JsonRestore(),
        **({FROZEN: ocp.args.StandardRestore(abstract.frozen)} if is_read else {}),
        **rollout,
    )
    progress = restored.progress
    if is_read:
        frozen = restored[FROZEN]
    else:
        assert make_frozen is not None or not needs_frozen
        frozen = make_frozen() if needs_frozen and make_frozen is not None else abstract.frozen
        _require_same_frozen(path, progress.get(FROZEN), frozen)
    number = jax.device_put(jnp.int32(progress["step"]), abstract.step.sharding)
    made = restored[ROLLOUT] if rollout else {}
    state = TrainState(number, restored.params, restored.optimizer, frozen, made)
    return state, progress


def _require_same_frozen(path: Path, saved: str | None, made: Params) -> None:
    """Check that the frozen weights `made` are those with the fingerprint `saved`.

    Raises:
        CheckpointMismatchError: they are not.
    """
    found = weights_fingerprint(made)
    if saved == found:
        return
    if saved is None:
        how = "it was made without frozen weights (of init.lora, or the reference of DPO or GRPO)"
    elif found is None:
        how = "it was made with frozen weights (of init.lora, or the reference of DPO or GRPO)"
    else:
        remedy = (
            "set init.checkpoint.save_frozen: true to go on with those of the checkpoint"
            if (path / FROZEN).is_dir()
            else "take init.seed back, or put back what the phase started from: the checkpoint, or "
            "the files of model.pretrained"
        )
        how = (
            f"its frozen weights have the fingerprint {saved}, but those that the config gives "
            f"(start_from, model.pretrained or init.seed) {found}: {remedy}"
        )
    raise CheckpointMismatchError(_mismatch(path, how))


def _read(path: Path, **items: Any) -> Any:
    reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    return reader.restore(path, args=ocp.args.Composite(**items))
