"""Checkpoints: the whole state and the data's position, saved by Orbax in the background.

Orbax decides by a directory's name what is a checkpoint; a crash can leave the name without the
content. So this module decides by `supervisor.protocol.committed`, like the supervisor does, and
clears away what is not committed before Orbax looks.
"""

# mypy: allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from supervisor.protocol.committed import committed_steps, is_committed
from trainer.state import TrainState

Position = Mapping[str, Any]
"""Where the data iterator is: what its `get_state` returned."""


class NoCheckpointError(FileNotFoundError):
    """There is no committed checkpoint where the phase must start from one."""


def newest_step(directory: Path) -> int | None:
    """The newest committed step under `directory`, if there is one."""
    return next((step for step, _ in committed_steps(directory)), None)


class Checkpoints:
    """Saves into one directory. Only one process group may do so at a time."""

    def __init__(self, directory: Path, keep: int) -> None:
        """Make `directory` ready, without what a killed save left there; keep the newest `keep`."""
        _clear_uncommitted(directory)
        self._directory = directory
        self._saving: int | None = None
        self._manager = ocp.CheckpointManager(
            directory,
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True),
        )

    def save(self, state: TrainState, step: int, position: Position) -> None:
        """Begin to save; `state` may be donated once this returns. Waits for an earlier save."""
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                optimizer=ocp.args.StandardSave(state.optimizer),
                rngs=ocp.args.StandardSave(state.rngs),
                progress=ocp.args.JsonSave({"step": step, "data": position}),
            ),
            force=True,
        )
        self._saving = step

    def newest(self) -> int | None:
        """The newest committed step."""
        return newest_step(self._directory)

    def committed(self, *, wait: bool = False) -> int | None:
        """The step of a save that was committed since the last call, told once.

        Raises:
            Exception: whatever made the save fail in the background.
        """
        if wait:
            self._manager.wait_until_finished()
        if self._saving is None or self._manager.is_saving_in_progress():
            return None
        self._manager.check_for_errors()
        step, self._saving = self._saving, None
        return step

    def close(self) -> None:
        """Wait for saves and stop the threads that make them."""
        self._manager.close()


def restore(directory: Path, step: int, abstract: TrainState) -> tuple[TrainState, Position]:
    """The state and the data's position of the committed `step`, laid out as in `abstract`."""
    restored = _read(
        directory / str(step),
        params=ocp.args.StandardRestore(abstract.params),
        optimizer=ocp.args.StandardRestore(abstract.optimizer),
        rngs=ocp.args.StandardRestore(abstract.rngs),
        progress=ocp.args.JsonRestore(),
    )
    number = jax.device_put(jnp.int32(restored.progress["step"]), abstract.step.sharding)
    state = TrainState(number, restored.params, restored.optimizer, restored.rngs)
    return state, restored.progress["data"]


def restore_parts(directory: Path, parts: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The newest committed step under `directory`, and those `parts` of its state.

    `parts` maps names of `TrainState`'s fields to their abstract trees.

    Raises:
        NoCheckpointError: nothing is committed there.
    """
    step = newest_step(directory)
    if step is None:
        raise NoCheckpointError(
            f"start_from: no committed checkpoint in {directory}: the phase to start from must "
            "have saved one"
        )
    wanted = {name: ocp.args.StandardRestore(tree) for name, tree in parts.items()}
    restored = _read(directory / str(step), **wanted)
    return step, {name: restored[name] for name in parts}


def _read(path: Path, **items: Any) -> Any:
    reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    return reader.restore(path, args=ocp.args.Composite(**items))


def _clear_uncommitted(directory: Path) -> None:
    """Remove steps that only look saved: Orbax would count them, and refuse to save them again."""
    for entry in directory.glob("[0-9]*"):
        if entry.name.isdecimal() and entry.is_dir() and not is_committed(entry):
            print(f"removing {entry}: its save was never committed", flush=True)
            shutil.rmtree(entry)
