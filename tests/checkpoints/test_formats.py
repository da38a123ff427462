"""What the formats allow, value by value: each kind of head, and where a file may end."""

from __future__ import annotations

import io
import os
import pickle
import struct
import time
from collections import OrderedDict
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest

from supervisor.checkpoints.completeness import MAX_FILES, files_of, is_complete
from supervisor.protocol.checkpoint_layouts import Structure
from supervisor.protocol.reading import UnreadableError
from tests.checkpoints.samples import hdf5, transformers_files

NUMBERS = [0, 127, 128, 255, 256, 65535, 65536, 1 << 32, (1 << 64) - 1]
NEGATIVE = [-1, -32, -33, -128, -129, -32768, -32769, -(1 << 31), -(1 << 63)]
LENGTHS = [0, 1, 31, 32, 255, 256, 65535, 65536]
COUNTS = [0, 1, 15, 16, 65535, 65536]
EXTENSIONS = [1, 2, 3, 4, 8, 16, 17, 255, 256, 65536]
VALUES: dict[str, list[object]] = {
    "numbers": [*NUMBERS, *NEGATIVE],
    "others": [None, False, True, 0.5],
    "strings": ["a" * length for length in LENGTHS],
    "bytes": [b"a" * length for length in LENGTHS],
    "extensions": [msgpack.ExtType(5, b"a" * length) for length in EXTENSIONS],
    "lists": [[1] * count for count in COUNTS],
    "maps": [dict.fromkeys(range(count)) for count in COUNTS],
    "nested": [[[], [[1], {2: [3, {}]}], 4]],
}


def whole(data: bytes, structure: Structure, folder: Path) -> bool:
    path = folder / "state_100"
    path.write_bytes(data)
    return is_complete(path, structure)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("single", [False, True])
def test_every_value_of_msgpack_ends_where_the_library_ends_it(
    kind: str, single: bool, tmp_path: Path
) -> None:
    for value in VALUES[kind]:
        for content in ({"v": value}, {"v": value, "w": 1}):
            data = msgpack.packb(content, use_single_float=single)
            assert whole(data, Structure.MSGPACK, tmp_path), content.keys()
            for wrong in (data[:-1], data[: len(data) // 2], data + b"\0"):
                assert not whole(wrong, Structure.MSGPACK, tmp_path)


def test_only_one_map_that_is_not_empty_is_a_state(tmp_path: Path) -> None:
    others: list[object] = [{}, [1], "text", 1, None]
    for content in others:
        assert not whole(msgpack.packb(content), Structure.MSGPACK, tmp_path)
    for count in (1, 15, 16, 65536):
        data = msgpack.packb(dict.fromkeys(range(count)))
        assert whole(data, Structure.MSGPACK, tmp_path)
    assert not whole(b"\x81\xa1v\xc1", Structure.MSGPACK, tmp_path), "0xc1 is no head"
    assert not whole(b"\x80" * 3, Structure.MSGPACK, tmp_path)


@pytest.mark.parametrize(("depth", "is_whole"), [(4, True), (60, True), (80, False)])
def test_a_tree_may_be_deep_but_not_endless(depth: int, is_whole: bool, tmp_path: Path) -> None:
    tree: object = 1
    for _ in range(depth):
        tree = {"inside": tree}
    assert whole(msgpack.packb(tree), Structure.MSGPACK, tmp_path) is is_whole


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_value_of_a_pickle_ends_at_its_stop(protocol: int, tmp_path: Path) -> None:
    values = [*VALUES["numbers"], *VALUES["others"], *VALUES["strings"], *VALUES["bytes"]]
    values += [1 << 90, 1 << 3000, OrderedDict(a=1), {1, 2}, (1, 2, 3, 4), np.arange(3), 1j]
    values += [bytearray(b"a" * length) for length in (1, 300)]
    for value in values:
        data = pickle.dumps([value, "end"], protocol=protocol)
        assert whole(data, Structure.PICKLE, tmp_path), value
        for wrong in (data[:-1], data[: len(data) // 2], data + b"."):
            assert not whole(wrong, Structure.PICKLE, tmp_path)


def test_an_opcode_with_a_line_ends_at_the_end_of_the_line(tmp_path: Path) -> None:
    data = b"\x80\x02I5\n."
    assert pickle.loads(data) == 5
    assert whole(data, Structure.PICKLE, tmp_path)
    assert not whole(data[:-2] + b".", Structure.PICKLE, tmp_path)


def test_more_than_a_million_values_do_not_count(tmp_path: Path) -> None:
    data = msgpack.packb({"v": [None] * 1_000_000})
    assert not whole(data, Structure.MSGPACK, tmp_path)


def test_a_pickle_without_its_protocol_is_none(tmp_path: Path) -> None:
    for protocol in (0, 1):
        assert not whole(pickle.dumps([1], protocol=protocol), Structure.PICKLE, tmp_path)
    assert not whole(b"\x80\x02\xff.", Structure.PICKLE, tmp_path), "no such opcode"


@pytest.mark.parametrize(
    ("flags", "is_whole"), [(0, True), (1, False), (2, True), (4, False), (5, False)]
)
def test_hdf5_says_who_writes(flags: int, is_whole: bool, tmp_path: Path) -> None:
    """Bit 0: it is open for writing; bit 2: the same, with readers beside."""
    data = bytearray(hdf5(3))
    data[11] = flags
    assert whole(bytes(data), Structure.HDF5, tmp_path) is is_whole


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 3)), np.array("names"), np.zeros(0), np.array(3, np.int8), np.zeros((2, 0, 3))],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_an_array_ends_where_numpy_ends_it(
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    version: tuple[int, int],
    tmp_path: Path,
) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    data = file.getvalue()
    assert whole(data, Structure.NPY, tmp_path)
    assert whole(data * 2, Structure.NPY, tmp_path)
    assert not whole(data[:-1], Structure.NPY, tmp_path)
    assert not whole(data + b"\0", Structure.NPY, tmp_path)


def test_an_array_of_objects_says_nothing_of_its_end(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    assert not whole(file.getvalue(), Structure.NPY, tmp_path)


def test_a_folder_of_too_many_files_does_not_count(tmp_path: Path) -> None:
    files = transformers_files()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    empty = tmp_path / "config.json"
    for number in range(MAX_FILES - len(files)):
        os.link(empty, tmp_path / f"extra-{number}.json")
    assert is_complete(tmp_path, Structure.TRANSFORMERS)
    assert len(files_of(tmp_path, Structure.TRANSFORMERS)) == MAX_FILES
    os.link(empty, tmp_path / "one-more.json")
    assert not is_complete(tmp_path, Structure.TRANSFORMERS)
    with pytest.raises(UnreadableError, match="has more than 10000 entries"):
        files_of(tmp_path, Structure.TRANSFORMERS)


def test_a_hostile_table_of_contents_costs_no_second(tmp_path: Path) -> None:
    """It may hold a million entries, each of a few bytes."""
    header = b"{" + b",".join(b'"%d":{"data_offsets":[0,0]}' % n for n in range(150_000)) + b"}"
    hostile = len(header).to_bytes(8, "little") + header
    assert len(header) > 4 << 20
    assert not whole(hostile, Structure.SAFETENSORS, tmp_path)
    entries = [struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", *(0,) * 11, 1, *(0,) * 6) + b"a"]
    directory = b"".join(entries * 200_000)
    start = b"PK\3\4" + bytes(40)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, len(directory), len(start), 0)
    assert len(directory) > 8 << 20
    began = time.process_time()
    assert not whole(start + directory + end, Structure.ZIP, tmp_path)
    assert time.process_time() - began < 1.0
