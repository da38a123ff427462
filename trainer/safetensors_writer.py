"""Writes safetensors files: one tensor at a time, so that no more than one is in memory twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from supervisor.config.training.safetensors import BYTES, INDEX, WEIGHTS, Tensor

LARGEST_SHARD = 5 << 30
"""Bytes of the tensors in one file, as far as a tensor is not larger itself."""


class Written(NamedTuple):
    """A tensor to write."""

    kind: str
    """Its type, as in `safetensors.BYTES`."""
    shape: tuple[int, ...]
    numbers: Callable[[], npt.NDArray[Any]]
    """Returns its numbers, in any type and strides."""

    @property
    def size(self) -> int:
        """Its bytes."""
        return Tensor(Path(), 0, self.kind, self.shape).size


def write_weights(
    folder: Path, tensors: Mapping[str, Written], types: Mapping[str, Any], largest: int
) -> None:
    """Write `tensors` into `folder`: one file, or several with an index if they take more than
    `largest` bytes. `types` has the type of numpy of each kind."""
    shards = _shards(tensors, largest)
    if len(shards) == 1:
        _write(folder / WEIGHTS, shards[0], types)
        return
    files = dict[str, str]()
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write(folder / name, shard, types)
        files |= dict.fromkeys(shard, name)
    total = sum(tensor.size for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(tensors: Mapping[str, Written], largest: int) -> list[dict[str, Written]]:
    shards, size = list[dict[str, Written]]([{}]), 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.size > largest:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.size
    return shards


def _write(path: Path, tensors: Mapping[str, Written], types: Mapping[str, Any]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        offsets = [at, at := at + tensor.size]
        header[name] = {"dtype": tensor.kind, "shape": tensor.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % max(BYTES.values()))  # the data begin at a multiple
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            numbers = np.ascontiguousarray(tensor.numbers(), types[tensor.kind])
            assert numbers.shape == tensor.shape
            file.write(numbers.tobytes())
