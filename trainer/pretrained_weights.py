"""Loads the weights of a pretrained model (`init.model.pretrained`) onto the mesh.

One tensor at a time is read into the memory of the host; each device gets its own part of it.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from flax import nnx

from supervisor.config.training.pretrained import PretrainedError
from supervisor.config.training.pretrained_tensors import find_weights, weights
from supervisor.config.training.safetensors import Tensor
from supervisor.config.training.sections import ModelConfig
from supervisor.protocol.reading import open_file
from trainer.not_finite import WeightsNotFiniteError
from trainer.train_state import Params

NUMBERS: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jax.numpy.bfloat16,
}
"""The types of tensors by their names in safetensors files."""


def load_pretrained(
    folder: Path, model: ModelConfig, abstract: Params, *, checks: bool = True
) -> Params:
    """Return the weights of `model` from `folder`, with the types and shardings of `abstract`.

    Raises:
        PretrainedError: the files are not those of this model.
        WeightsNotFiniteError: a tensor holds NaN or Inf. (Not without `checks`.)
        OSError: a file cannot be read now.
    """
    found, leaves = find_weights(folder, model), dict(nnx.to_flat_state(abstract))
    loaded: dict[Any, Any] = {}
    for weight in weights(model):
        leaf = leaves.pop(weight.path)
        numbers = _read(found[weight.name]).astype(leaf.dtype)
        if checks:
            _check(numbers, weight.name, found[weight.name].file)
        numbers = numbers.T if weight.is_transposed else numbers
        array = jax.make_array_from_callback(leaf.shape, leaf.sharding, numbers.__getitem__)
        loaded[weight.path] = leaf.replace(array)
    assert not leaves, "the table of weights has all parameters of the decoder"
    params: Params = nnx.from_flat_state(loaded)
    return params


def _check(numbers: npt.NDArray[Any], name: str, file: Path) -> None:
    if not numbers.size or (np.isfinite(numbers.min()) and np.isfinite(numbers.max())):
        return  # both are NaN if any number is; and no array as large as the tensor is made
    bad = ~np.isfinite(numbers)
    first = list(map(int, np.unravel_index(int(bad.argmax()), bad.shape)))
    raise WeightsNotFiniteError(
        f"{file}: the tensor {name} holds NaN or Inf as {numbers.dtype}: {int(bad.sum())} of "
        f"{bad.size} numbers, the first at {first}. No training can mend that: download the model "
        "again, or mend this tensor"
    )


def _read(tensor: Tensor) -> npt.NDArray[Any]:
    data = bytearray(tensor.size)
    with open_file(tensor.file, linked=True) as file:
        file.seek(tensor.begin)
        view, done = memoryview(data), 0
        while done < len(data) and (count := file.readinto(view[done:])):
            done += count
    if done < len(data):
        raise PretrainedError(f"{tensor.file}: was cut while it was read: download it again")
    return np.frombuffer(data, NUMBERS[tensor.kind]).reshape(tensor.shape)
