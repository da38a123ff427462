"""Orbax's manager, as this trainer uses it: it writes steps, and does nothing else.

By itself the manager lists a directory by the names in it, removes steps to keep a number of them,
removes what lies in the way of a save, and cleans up temporary folders: whoever made them. Here it
knows of no step but those that it saves, and removes none: that is for `trainer.checkpoint_steps`.
What it finds in its way is an error. The last moment before a commit is ours too: see
`TemporaryPath`.
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
"""Called with a step whose files are all written, in the thread that commits it; by an exception
the step stays uncommitted."""


class Manager(ocp.CheckpointManager):
    """Orbax's, which leaves it to the loop to ask `jax.distributed` whether to stop.

    Orbax asks too, in the thread that commits a step with the number of that step: a notice at that
    moment has all processes stop at a step that they have left behind, hence never.
    """

    def reached_preemption(self, step: int) -> bool:
        """Never, as far as Orbax needs to know."""
        return False


def manager(
    directory: Path,
    *,
    policy: SaveDecisionPolicy | None,
    by_rename: bool,
    before_commit: BeforeCommit,
) -> Manager:
    """Return a manager that saves steps in `directory`, when `policy` says so."""
    path_class = _temporary_path_class(directory, by_rename=by_rename, before_commit=before_commit)
    return Manager(
        directory,
        options=ocp.CheckpointManagerOptions(
            step_name_format=_OwnSteps(),
            save_decision_policy=policy,
            preservation_policy=preservation_policy.PreserveAll(),
            cleanup_tmp_directories=False,
            # The name says little: with it, what lies in the way of a save is not removed.
            file_options=ocp.options.FileOptions(skip_sync_file_validations=True),
            temporary_path_class=path_class,
        ),
    )


class _OwnSteps(orbax_path.step.NameFormat):
    """Names steps as Orbax does, and finds none."""

    def build_name(self, step: int) -> str:
        """The name of the folder of `step`."""
        return str(step)

    def find_all(self, base_path: Any) -> Iterator[Any]:
        """None: a name is no proof of anything."""
        return iter(())

    def find_step(self, base_path: Any, step: int) -> Any:
        """Not asked for: what is restored is found by `trainer.checkpoint_steps`."""
        raise ValueError(f"step {step} is not looked for by its name")


def _temporary_path_class(
    directory: Path, *, by_rename: bool, before_commit: BeforeCommit
) -> type[Any]:
    atomicity = orbax_path.atomicity
    base = atomicity.AtomicRenameTemporaryPath if by_rename else atomicity.CommitFileTemporaryPath

    class TemporaryPath(base):
        """Where a step (or an item in it) is written, until it is committed."""

        async def create(self) -> Any:
            """Make it; Orbax would first remove what is there."""
            if await asyncio.to_thread(self.get().exists):
                raise FileExistsError(f"{self.get()} has come into the way of a save")
            return await super().create()

        async def finalize(self) -> None:
            """Commit it, as Orbax does; of a step, `before_commit` comes last but one."""
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
