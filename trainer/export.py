"""`python -P -m trainer.export MODEL_DIR FOLDER [--phase NAME] [--step N] [--dtype TYPE]`: writes
the model of a checkpoint as a folder of Hugging Face, with adapters merged into its weights.

It only reads model_dir, and works beside a running job. It computes on the CPU. FOLDER appears when
all of it is written.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml
from flax import nnx

from supervisor.config.problems import ConfigError
from supervisor.config.training.layout import Rung
from supervisor.config.training.pretrained import (
    CONFIG,
    PretrainedError,
    config_of,
    read_linked,
)
from supervisor.config.training.pretrained_tensors import weights
from supervisor.config.training.resolved import (
    TrainerConfig,
    config_error,
    parse_with_problems,
)
from supervisor.config.training.sections import TOKENIZER
from supervisor.protocol.location import Uri
from supervisor.protocol.reading import UnreadableError, read_text
from trainer.bucket_paths import path_of
from trainer.checkpoint import (
    CheckpointMismatchError,
    NoCheckpointError,
    newest_step,
    restore,
)
from trainer.checkpoint_steps import NoUsableCheckpointError
from trainer.first_state import first_state
from trainer.lora import merged
from trainer.manifest import DamagedError, read_manifest
from trainer.mesh import make_mesh
from trainer.objective_choice import objective_of
from trainer.pretrained_weights import NUMBERS
from trainer.safetensors_writer import LARGEST_SHARD, Written, write_weights
from trainer.train_state import Params, TrainStateSpec

_TYPES = {"float32": "F32", "bfloat16": "BF16"}
_TOKENIZER_FILES = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_GENERATION = "generation_config.json"
_PARAMS = "*_restartable/params.yaml"
_LARGEST_PARAMS = 16 << 20
_LARGEST_FILE = 256 << 20


class ExportError(ValueError):
    """There is nothing to export, or no place for it; the text says what to do."""


def export(config: TrainerConfig, step: int, folder: Path, dtype: str, largest: int) -> None:
    """Write the model that `config` has committed as `step` to the new folder `folder`, in files of
    at most `largest` bytes.

    Raises:
        DamagedError: the checkpoint's files are not what was committed.
        CheckpointMismatchError: its frozen weights cannot be made again.
        OSError: something cannot be read or written.
    """
    model, params = config.init.model, trained_weights(config, step)
    leaves = dict(nnx.to_flat_state(params))
    kind = _TYPES[dtype]
    tensors = {
        one.name: Written(
            kind, one.shape, partial(_numbers, leaves[one.path], transposed=one.is_transposed)
        )
        for one in weights(model)
    }
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as made:
        whole = Path(made, folder.name)
        whole.mkdir()
        write_weights(whole, tensors, NUMBERS, largest)
        if (tokenizer := config.init.tokenizer_folder) is not None:
            for name in _TOKENIZER_FILES:
                _copy(tokenizer / name, whole / name)
            _copy((model.folder or tokenizer) / _GENERATION, whole / _GENERATION)
        text = json.dumps(config_of(model, model.folder, dtype), indent=2)
        (whole / CONFIG).write_text(text + "\n", encoding="utf-8")
        for path in (*whole.iterdir(), whole):
            _sync(path)
        whole.replace(folder)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    """Write a file or folder to the disk: else a power cut can leave an empty one of this name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def trained_weights(config: TrainerConfig, step: int) -> Params:
    """Return the weights of the model at the committed `step`, on one device; adapters are merged
    into them. Errors as `export`."""
    objective = objective_of(config.init, config.fit.decisive)
    spec = TrainStateSpec.of(config.init, make_mesh(Rung(1, 1, 1, 1, 1)), objective)
    place = config.init.checkpoint.directory
    path = path_of(place) / str(step)
    if (manifest := read_manifest(path)) is not None:
        manifest.verify(path)
    start = partial(first_state, config.start_from, spec, lambda *_: None)
    state, _ = restore(place, step, spec.abstract, lambda: start().frozen)
    if config.init.lora is None:
        return state.params
    weights_of_all: Params = merged(state.params, state.frozen, config.init.lora.scale)
    return weights_of_all


def _numbers(leaf: Any, *, transposed: bool) -> Any:
    numbers = np.asarray(leaf[...])
    return numbers.T if transposed else numbers


def _copy(source: Path, target: Path) -> None:
    """Copy a file of the tokenizer, if there is one."""
    try:
        data = read_linked(source, _LARGEST_FILE)
    except FileNotFoundError:
        return
    target.write_bytes(data)


def _config(model_dir: Path, phase: str | None) -> TrainerConfig:
    """Return the config of the last phase of the job in `model_dir` that trains, or of the phase so
    named."""
    found = sorted(model_dir.glob(_PARAMS), reverse=True)
    names = dict[str, None]()
    for path in found:
        config = _without_data(_params(path))
        if config.init.optimizer is not None:
            if phase in (None, config.name):
                return config
            names[config.name] = None
        elif phase == config.name:
            raise ExportError(f"--phase {phase}: it only evaluates, and has no weights of its own")
    if names:
        raise ExportError(f"--phase {phase}: {model_dir} has the phases {', '.join(names)}")
    raise ExportError(f"{model_dir}: no phase of our trainer has trained there: name its model_dir")


def _without_data(mapping: Mapping[str, Any]) -> TrainerConfig:
    """As `parse`, but the data may be gone, or have a path that counts from another folder."""
    config, found = parse_with_problems(mapping.get("trainer"))
    if config is None or (found := [one for one in found if one[0][0] != "fit"]):
        raise config_error(found)
    return config


def _params(path: Path) -> dict[str, Any]:
    text = read_text(path, _LARGEST_PARAMS)
    try:
        params = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        params = None
    if not isinstance(params, dict):
        raise ExportError(f"{path}: is no config of a phase: name another phase, or mend the file")
    return params


def _step(place: Path | Uri, wanted: int | None) -> int:
    newest = newest_step(place)
    if newest is None:
        raise ExportError(f"{place}: no step is committed there yet: train first")
    if wanted is None:
        return newest
    if read_manifest(path_of(place) / str(wanted)) is None:
        raise ExportError(f"--step {wanted}: is not committed in {place}; the newest is {newest}")
    return wanted


def _free(folder: Path) -> Path:
    if os.path.lexists(folder):
        raise ExportError(f"{folder}: is there already, and is not overwritten: name a new folder")
    if not folder.absolute().parent.is_dir():
        raise ExportError(f"{folder}: its parent folder does not exist: make it first")
    return folder.absolute()


def main() -> int:
    """Export what the arguments say; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m trainer.export", description=__doc__)
    parser.add_argument("model_dir", type=Path, metavar="MODEL_DIR")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--phase", help="a phase of the job; without it the last that trains")
    parser.add_argument("--step", type=int, help="a committed step; without it the newest one")
    parser.add_argument("--dtype", choices=[*_TYPES], default="float32", help="type of the weights")
    options = parser.parse_args()
    try:
        folder, config = _free(options.folder), _config(options.model_dir, options.phase)
        step = _step(config.init.checkpoint.directory, options.step)
        with redirect_stdout(sys.stderr):  # the log of the trainer is none of what we tell
            export(config, step, folder, options.dtype, LARGEST_SHARD)
    except (ExportError, ConfigError, UnreadableError) as error:
        return _refused(error, os.EX_CONFIG)
    except (
        DamagedError,
        CheckpointMismatchError,
        NoCheckpointError,
        NoUsableCheckpointError,
        PretrainedError,
    ) as error:
        return _refused(error, os.EX_SOFTWARE)
    except OSError as error:
        return _refused(error, os.EX_IOERR)
    print(f"exported step {step} to {options.folder}")
    return 0


def _refused(error: Exception, code: int) -> int:
    print(f"trainer.export: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    sys.exit(main())
