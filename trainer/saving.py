"""Orbax's checkpoint manager, restricted to writing steps.

By itself the manager finds steps in a directory by their names, removes old steps, removes what is
in the way of a save, and removes temporary folders, no matter who made them. Here it knows only the
steps that it saves itself, and removes none: `trainer.checkpoint_steps` does that. If something is
in the way of a save, that is an error. Just before each commit it calls us: see `TemporaryPath`.
"""

# mypy: allow-untyped-calls, disable-error-code="attr-defined, misc, name-defined, valid-type"
from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orbax.checkpoint as ocp
from orbax.checkpoint import path as orbax_path
from orbax.checkpoint.checkpoint_managers import SaveDecisionPolicy, preservation_policy

from supervisor.protocol import removal
from supervisor.protocol.committed import MARKER, METADATA
from trainer import bucket_paths
from trainer.agreed_saves import AgreedSaves, NoFolderError
from trainer.retries import Retries, may_pass

T = TypeVar("T")

BeforeCommit = Callable[[int], None]
"""Called with a step when all its files are written, in the thread that commits it. If it raises,
the step stays uncommitted."""


class CheckpointManager(ocp.CheckpointManager):
    """Orbax's manager, but it never asks `jax.distributed` whether to stop: the training loop does.

    Orbax would ask in the thread that commits a step, with the number of that step. If a notice
    came at that moment, all processes would agree to stop at a step that is already behind them,
    and would never stop.
    """

    def reached_preemption(self, step: int) -> bool:
        """Return False: Orbax is never told of a preemption."""
        return False


def make_manager(
    directory: Path,
    *,
    policy: SaveDecisionPolicy | None,
    by_rename: bool,
    before_commit: BeforeCommit,
    retries: Retries | None = None,
    agreed: AgreedSaves | None = None,
) -> CheckpointManager:
    """Return a manager that saves steps in `directory` when `policy` says so. `retries` and
    `agreed` are for several processes: what one of them does alone is tried again where it fails
    for a moment, and else all of them agree on how a save ends."""
    path_class = _temporary_path_class(
        directory, by_rename=by_rename, before_commit=before_commit, retries=retries
    )
    manager = CheckpointManager(
        directory,
        options=ocp.CheckpointManagerOptions(
            step_name_format=_StepNamesOnly(),
            save_decision_policy=policy,
            preservation_policy=preservation_policy.PreserveAll(),
            cleanup_tmp_directories=False,
            # In spite of its name, this option also keeps what is in the way of a save from
            # removal.
            file_options=ocp.options.FileOptions(skip_sync_file_validations=True),
            temporary_path_class=path_class,
        ),
    )
    if agreed is not None:
        agreed.install(manager._checkpointer._async_manager)
    return manager


class _StepNamesOnly(orbax_path.step.NameFormat):
    """Names steps as Orbax does, but finds none."""

    def build_name(self, step: int) -> str:
        """Return the name of the folder of `step`."""
        return str(step)

    def find_all(self, base_path: Any) -> Iterator[Any]:
        """Yield nothing: a folder's name does not prove that it is a step of this job."""
        return iter(())

    def find_step(self, base_path: Any, step: int) -> Any:
        """Raise ValueError. Orbax never calls this: `trainer.checkpoint_steps` finds what is
        restored."""
        raise ValueError(f"step {step} is not looked for by its name")


def _temporary_path_class(
    directory: Path, *, by_rename: bool, before_commit: BeforeCommit, retries: Retries | None
) -> type[Any]:
    atomicity = orbax_path.atomicity
    base = atomicity.AtomicRenameTemporaryPath if by_rename else atomicity.CommitFileTemporaryPath

    again = retries if by_rename else None

    class TemporaryPath(base):
        """The folder in which a step (or an item in it) is written until it is committed."""

        async def create(self) -> Any:
            """Make the folder. It must not exist: Orbax would remove what is there."""
            if await asyncio.to_thread(self.get().exists):
                raise FileExistsError(f"{self.get()} has come into the way of a save")
            return await _folder(f"the making of {self.get()}", super().create, retries)

        async def finalize(self) -> None:
            """Commit the folder, as Orbax does. For a step, call `before_commit` just before
            that."""
            final = self.get_final()
            what, commit = f"step {final.name}", partial(asyncio.to_thread, self._commit)
            if final.parent != type(final)(directory):
                what, commit = final.name, super().finalize
            commits = _Commit(commit, self.get(), final)
            await _retried(f"the commit of {what}", commits, again)

        def _commit(self) -> None:
            written, final = self.get(), self.get_final()
            if (store := self._checkpoint_metadata_store) is not None:
                store.wait_until_finished()
                now = time.time_ns()
                store.update(file_path=written / METADATA, commit_timestamp_nsecs=now)
                store.wait_until_finished()
            said = f"Checkpoint commit was successful to {final}"
            if by_rename:
                (written / MARKER).write_text(said)
                before_commit(int(final.name))
                removal.rename(Path(os.fspath(written)), final.name)
            elif bucket_paths.is_in_bucket(directory):
                before_commit(int(final.name))
                bucket_paths.create(final / MARKER, said.encode())
            else:
                before_commit(int(final.name))
                with open(final / MARKER, "x") as file:  # noqa: PTH123
                    file.write(said)

    return TemporaryPath


class _Commit:
    """Several tries to have `commit` rename `written` to `final`.

    The error of a rename that may pass does not count if it has taken effect nevertheless, in this
    try or an earlier one: on a soft NFS mount it may time out so.
    """

    def __init__(self, commit: Callable[[], Awaitable[None]], written: Any, final: Any) -> None:
        self._commit = commit
        self._written = written
        self._final = final
        self._may_have_passed = False

    async def __call__(self) -> None:
        """Try it."""
        try:
            await self._commit()
        except OSError as error:
            self._may_have_passed |= may_pass(error)
            renamed = partial(_is_renamed, self._written, self._final)
            if not (self._may_have_passed and await asyncio.to_thread(renamed)):
                raise


def _is_renamed(written: Any, final: Any) -> bool:
    """Whether `written` has become `final`; False, too, if that cannot be seen."""
    try:
        os.lstat(written)
    except OSError as error:
        return error.errno == errno.ENOENT and os.path.lexists(final)
    return False


async def _folder(what: str, make: Callable[[], Awaitable[T]], retries: Retries | None) -> T:
    """Return the folder that `make` makes; tries as `_retried`."""
    try:
        return await _retried(what, make, retries)
    except OSError as error:
        if retries is None:
            raise
        raise NoFolderError(error.errno, error.strerror, error.filename) from error


async def _retried(what: str, action: Callable[[], Awaitable[T]], retries: Retries | None) -> T:
    """Return what `action` returns, after several tries if need be; None: one alone."""
    failures = 0
    while True:
        try:
            return await action()
        except Exception as error:
            if retries is None:
                raise
            failures += 1
            await asyncio.sleep(retries.pause(failures, what, error))
