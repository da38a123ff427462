"""Whether a step that nothing commits is complete, by the structure of all its files.

Folders and links inside of a step are not followed: no format here has any.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from itertools import islice
from pathlib import Path

from supervisor.checkpoints.formats import (
    ends_as_table,
    is_hdf5,
    is_npy,
    is_safetensors,
    is_zip,
    size_of,
)
from supervisor.checkpoints.streams import MAPS, is_msgpack, is_pickle
from supervisor.protocol.checkpoint_layouts import Structure
from supervisor.protocol.reading import UnreadableError, open_file, read_end, read_object

MAX_FILES = 10_000
"""The most files of a step. One with more does not count."""
_MAX_INDEX = 64 << 20
_STATE = "trainer_state.json"
_STATE_END = b"\n}\n"
"""How the file ends: it is indented, so only its last line begins with a brace."""
_CHECKS: Mapping[Structure, Callable[[FileIO], bool]] = {
    Structure.ZIP: is_zip,
    Structure.SAFETENSORS: is_safetensors,
    Structure.MSGPACK: is_msgpack,
    Structure.NPY: is_npy,
    Structure.HDF5: is_hdf5,
    Structure.PICKLE: is_pickle,
    Structure.NAMED: lambda file: size_of(file) > 0,
}
_BEGINNINGS = {
    b"PK\3\4": is_zip,
    b"\x93NUMPY": is_npy,
    b"\x89HDF\r\n\x1a\n": is_hdf5,
    b"\x80": is_pickle,
    **{bytes((head,)): is_msgpack for head in MAPS},
}
"""How files of a format begin. It is this that counts, and not the suffix: people give `.ckpt` and
`.pt` to any format."""
_SUFFIXES = {".safetensors": is_safetensors, ".pt": is_zip, ".pth": is_zip, ".bin": is_zip}
"""The files of a Hugging Face checkpoint that a structure is known of."""
_DATA = re.compile(r"\.data-(\d{5})-of-(\d{5})")


def files_of(step: Path, structure: Structure) -> Sequence[Path]:
    """Returns the files of a step, each of which must be closed.

    Raises:
        OSError: they cannot be listed now.
    """
    if structure is Structure.TRANSFORMERS:
        return _listed(step, lambda name: True)
    if structure is Structure.TENSORFLOW:
        return (step, *_tensorflow_files(step))
    return (step,)


def is_complete(step: Path, structure: Structure) -> bool:
    """True if all that the structure of `step` wants is there.

    Raises:
        OSError: it cannot be read now.
    """
    try:
        if structure is Structure.TRANSFORMERS:
            return _is_complete_folder(step)
        if structure is Structure.TENSORFLOW:
            return _is_complete_table(step)
        with open_file(step) as file:
            return _check_of(file, structure)(file)
    except (FileNotFoundError, NotADirectoryError, UnreadableError):
        return False


def _check_of(file: FileIO, structure: Structure) -> Callable[[FileIO], bool]:
    if structure in (Structure.SAFETENSORS, Structure.NAMED):  # they begin with any byte
        return _CHECKS[structure]
    start = file.read(max(map(len, _BEGINNINGS)))
    file.seek(0)
    told = (check for begins, check in _BEGINNINGS.items() if start.startswith(begins))
    return next(told, _CHECKS[structure])


def _is_complete_folder(step: Path) -> bool:
    if read_end(step / _STATE, len(_STATE_END)) != _STATE_END:
        return False
    files = _listed(step, lambda name: True)
    names = {path.name for path in files}
    for path in files:
        if path.name.endswith(".index.json"):
            shards = read_object(path, _MAX_INDEX).get("weight_map")
            if not isinstance(shards, dict) or not names.issuperset(map(str, shards.values())):
                return False
        check = _SUFFIXES.get(path.suffix)
        if check is not None:
            with open_file(path) as file:
                if not check(file):
                    return False
    return True


def _is_complete_table(step: Path) -> bool:
    """True for an index of TensorFlow with its data files, and clu's file beside it if there is
    one."""
    with open_file(step) as file:
        if not ends_as_table(file):
            return False
    files = _tensorflow_files(step)
    parts = [match for path in files if (match := _DATA.fullmatch(path.name, len(step.stem)))]
    for path in files:
        if path.suffix == ".flax":
            with open_file(path) as file:
                if not is_msgpack(file):
                    return False
    wanted = {f"{number:05}" for number in range(int(parts[0][2]))} if parts else set()
    return bool(parts) and wanted == {part[1] for part in parts}


def _tensorflow_files(step: Path) -> Sequence[Path]:
    return _listed(
        step.parent,
        lambda name: (
            name.startswith(step.stem)
            and (name == f"{step.stem}.flax" or _DATA.fullmatch(name, len(step.stem)) is not None)
        ),
    )


def _listed(folder: Path, is_wanted: Callable[[str], bool]) -> Sequence[Path]:
    """Returns the files of a folder with a wanted name.

    Raises:
        UnreadableError: the folder has too many entries.
    """
    with os.scandir(folder) as listing:
        entries = list(islice(listing, MAX_FILES + 1))
    if len(entries) > MAX_FILES:
        raise UnreadableError(folder, f"has more than {MAX_FILES} entries")
    return [
        Path(entry.path)
        for entry in entries
        if is_wanted(entry.name) and entry.is_file(follow_symlinks=False)
    ]
