"""The headers of safetensors files: which tensors a folder has, and where their bytes are.

The format is an eight-byte length, a JSON header, and the tensors' bytes one after the other. A
header is checked against the size of its file, so a file that was not downloaded to its end is
found before anything is read from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.config.training.pretrained import PretrainedError, read_folder_object
from supervisor.protocol.reading import UnreadableError, open_file, parse_object

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Names the file of each tensor where there are several."""
BYTES: Mapping[str, int] = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""The types that weights have, and the bytes of one number."""
_LARGEST_HEADER = 100 << 20
_MOST_AXES = 8
_TOO_LARGE = 1 << 63
"""No file has as many bytes."""
_AGAIN = "download it again"


class Tensor(NamedTuple):
    """Where a tensor is."""

    file: Path
    begin: int
    kind: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Its bytes."""
        return prod(self.shape) * BYTES[self.kind]


def read_headers(folder: Path) -> dict[str, Tensor]:
    """Returns the tensors in `folder` by their names.

    Raises:
        PretrainedError: a file is missing, cut or damaged, or there are no such files.
        OSError: a file cannot be read now.
    """
    if (folder / WEIGHTS).exists():
        return _header(folder / WEIGHTS)
    index = folder / INDEX
    if not index.exists():
        raise PretrainedError(
            f"{folder}: there are no weights: neither {WEIGHTS} nor {INDEX}; download the model "
            "again in the format safetensors"
        )
    files = read_folder_object(index).get("weight_map")
    if not isinstance(files, dict) or not all(
        isinstance(file, str) and not set("/\0") & set(file) for file in files.values()
    ):
        raise PretrainedError(f"{index}: weight_map must map tensors to file names: {_AGAIN}")
    headers = {file: _header(folder / file) for file in sorted(set(files.values()))}
    for name, file in files.items():
        if name not in headers[file]:
            raise PretrainedError(
                f"{folder / file}: lacks the tensor {name}, which {INDEX} says is there: download "
                "both again"
            )
    return {name: tensor for header in headers.values() for name, tensor in header.items()}


def _header(path: Path) -> dict[str, Tensor]:
    try:
        with open_file(path, linked=True) as file:
            return _parsed(path, file)
    except (FileNotFoundError, NotADirectoryError):
        raise PretrainedError(f"{path}: there is no such file: {_AGAIN}") from None
    except UnreadableError as error:
        raise PretrainedError(f"{error}: {_AGAIN}") from None


def _parsed(path: Path, file: FileIO) -> dict[str, Tensor]:
    size = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(_LARGEST_HEADER, size - 8):
        raise PretrainedError(
            f"{path}: is no safetensors file, or is cut: it has {size} bytes: {_AGAIN}"
        )
    header = parse_object(_exactly(file, length), path)
    header.pop("__metadata__", None)
    found = {name: _tensor(path, name, said, 8 + length) for name, said in header.items()}
    end = 8 + length
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].begin, item[1].size)):
        if tensor.begin != end:
            raise PretrainedError(
                f"{path}: the tensor {name} does not begin where the one before it ends: {_AGAIN}"
            )
        end += tensor.size
    if size != end:
        raise PretrainedError(
            f"{path}: has {size} bytes, but its header says {end}: it is cut or damaged; {_AGAIN}"
        )
    return found


def _exactly(file: FileIO, length: int) -> bytes:
    parts, left = list[bytes](), length
    while left and (part := file.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _tensor(path: Path, name: str, said: Any, start: int) -> Tensor:
    """Returns the tensor `name` of a header, whose data begin at `start`."""
    said = said if isinstance(said, dict) else {}
    kind, shape, offsets = (said.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (_are_counts(shape) and _are_counts(offsets) and len(offsets) == 2):
        raise PretrainedError(f"{path}: the header says no place of the tensor {name}: {_AGAIN}")
    if not isinstance(kind, str) or kind not in BYTES:
        raise PretrainedError(
            f"{path}: the tensor {name} has the type {kind}: use a model with weights of the types "
            f"{', '.join(BYTES)}, which is not quantised"
        )
    tensor = Tensor(path, start + offsets[0], kind, tuple(shape))
    if offsets[1] - offsets[0] != tensor.size:
        raise PretrainedError(
            f"{path}: the tensor {name} has {offsets[1] - offsets[0]} bytes, but its shape "
            f"{shape} and type {kind} need {tensor.size}: {_AGAIN}"
        )
    return tensor


def _are_counts(value: Any) -> bool:
    """Whether `value` is a list of sizes or offsets. Their number and size are bounded, so that
    their product is found at once."""
    return (
        isinstance(value, list)
        and len(value) <= _MOST_AXES
        and all(type(one) is int and 0 <= one < _TOO_LARGE for one in value)
    )
