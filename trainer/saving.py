"""Orbax's checkpoint manager, restricted to writing steps.

By itself the manager finds steps in a directory by their names, removes old steps, removes what is
in the way of a save, and removes temporary folders, no matter who made them. Here it knows only the
steps that it saves itself, and removes none: `trainer.checkpoint_steps` does that. If something is
in the way of a save, that is an error. Just before each commit it calls us: see `TemporaryPath`.
"""

# mypy: allow-untyped-calls, disable-error-code="attr-defined, misc, name-defined, valid-type"
from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint import path as orbax_path
from orbax.checkpoint.checkpoint_managers import SaveDecisionPolicy, preservation_policy

from supervisor.protocol import removal
from supervisor.protocol.committed import MARKER, METADATA
from trainer import bucket_paths

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
) -> CheckpointManager:
    """Return a manager that saves steps in `directory` when `policy` says so."""
    path_class = _temporary_path_class(directory, by_rename=by_rename, before_commit=before_commit)
    return CheckpointManager(
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
    directory: Path, *, by_rename: bool, before_commit: BeforeCommit
) -> type[Any]:
    atomicity = orbax_path.atomicity
    base = atomicity.AtomicRenameTemporaryPath if by_rename else atomicity.CommitFileTemporaryPath

    class TemporaryPath(base):
        """The folder in which a step (or an item in it) is written until it is committed."""

        async def create(self) -> Any:
            """Make the folder. It must not exist: Orbax would remove what is there."""
            if await asyncio.to_thread(self.get().exists):
                raise FileExistsError(f"{self.get()} has come into the way of a save")
            return await super().create()

        async def finalize(self) -> None:
            """Commit the folder, as Orbax does. For a step, call `before_commit` just before
            that."""
            if self.get_final().parent != type(self.get_final())(directory):
                await super().finalize()
                return
            await asyncio.to_thread(self._commit)

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
