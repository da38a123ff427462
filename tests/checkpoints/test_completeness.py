"""A whole checkpoint of every format is complete, and no beginning of one is."""

from __future__ import annotations

import os
import pickle
import random
import tempfile
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.checkpoints.completeness import is_complete
from supervisor.checkpoints.formats import is_zip
from supervisor.protocol.checkpoint_layouts import LAYOUTS, Structure, structure_of
from tests.checkpoints import samples
from tests.checkpoints.samples import FILES, hdf5, tensorflow_files, transformers_files


def complete(path: Path) -> bool:
    structure = structure_of(path.name, is_folder=path.is_dir())
    assert structure is not None
    return is_complete(path, structure)


def test_there_is_a_sample_of_every_structure() -> None:
    made = {structure_of(name, is_folder=False) for name in FILES}
    known = {*Structure} - {Structure.NAMED}
    assert made | {Structure.TENSORFLOW, Structure.TRANSFORMERS} == known
    assert {row.structure for row in LAYOUTS} - {None} == known


@pytest.mark.parametrize("name", FILES)
def test_a_whole_file_is_complete(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name]())
    assert complete(path)


@pytest.mark.parametrize("name", FILES)
def test_no_beginning_of_a_file_is_complete(name: str, tmp_path: Path) -> None:
    path, whole = tmp_path / name, FILES[name]()
    ends_between_arrays = set()
    if name.endswith(".eqx"):
        ends_between_arrays = {
            at for at in range(len(whole)) if whole[at:].startswith(b"\x93NUMPY")
        }
    seen = set()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if complete(path):
            seen.add(size)
    assert seen == ends_between_arrays - {len(b'{"width": 3}\n')}


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_more_behind_it_or_of_zeros_is_not_complete(name: str, tmp_path: Path) -> None:
    path, whole = tmp_path / name, FILES[name]()
    for data in (whole + b"\0", b"\0" * len(whole), b"\0" + whole[1:], whole[:-1] + b"\1"):
        path.write_bytes(data)
        ends_alike = data[:-1] == whole[:-1] and not name.endswith((".pkl", ".pickle"))
        if not ends_alike:  # the last byte of an array may be anything
            assert not complete(path), data[-5:]


@pytest.mark.parametrize("suffix", [".ckpt", ".pt", ".pkl"])
@pytest.mark.parametrize("name", FILES)
def test_the_first_bytes_tell_the_format_and_not_the_suffix(
    name: str, suffix: str, tmp_path: Path
) -> None:
    whole = FILES[name]()
    if name.endswith(".safetensors") or whole.startswith(b"{"):  # these begin with any byte
        return
    path = tmp_path / f"ckpt_100{suffix}"
    path.write_bytes(whole)
    assert complete(path)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert not complete(path)


def test_several_pickles_in_one_file_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "state_100.pkl"
    path.write_bytes(pickle.dumps({"step": 100}) + pickle.dumps([1.0, 2.0]))
    assert complete(path)
    path.write_bytes(path.read_bytes()[:-1])
    assert not complete(path)


@pytest.mark.parametrize("name", FILES)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None)
def test_no_nonsense_raises(name: str, seed: int) -> None:
    drawn = random.Random(seed)
    data = bytearray(FILES[name]())
    for _ in range(drawn.randrange(1, 6)):
        data[drawn.randrange(len(data))] = drawn.randrange(256)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data[: drawn.randrange(len(data) + 1)])
        complete(path)


@pytest.mark.parametrize("length", [1 << 40, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1])
@pytest.mark.parametrize("opcode", [b"\x8d", b"\x8e", b"\x96"])
def test_a_pickle_that_announces_more_than_any_file_holds_is_not_complete(
    opcode: bytes, length: int, tmp_path: Path
) -> None:
    path = tmp_path / "state_100.pkl"
    path.write_bytes(b"\x80\x05" + opcode + length.to_bytes(8, "little") + b".")
    assert not complete(path)


def write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def test_a_folder_of_transformers_is_complete_with_all_its_files(tmp_path: Path) -> None:
    files, step = transformers_files(), tmp_path / "checkpoint-100"
    for name in files:
        write(step, {name: files[name]})
        assert complete(step) is (name == "trainer_state.json")
    for name in ("model-00002-of-00002.safetensors", "trainer_state.json"):
        (step / name).unlink()
        assert not complete(step)
        write(step, {name: files[name]})
    for name, data in files.items():
        if name != "config.json":
            write(step, {name: data[:-1]})
            assert not complete(step), name
            write(step, {name: data})
    assert complete(step)


def test_a_step_of_tensorflow_is_complete_with_its_index_and_all_data(tmp_path: Path) -> None:
    files, step = tensorflow_files(), tmp_path / "ckpt-100.index"
    for name in files:
        write(tmp_path, {name: files[name]})
        assert complete(step) is (name == "ckpt-100.index")
    for name in ("ckpt-100.data-00001-of-00002", "ckpt-100.flax"):
        write(tmp_path, {name: files[name]})
        (tmp_path / name).rename(tmp_path / "away")
        assert complete(step) is (name == "ckpt-100.flax")  # TensorFlow alone has none
        (tmp_path / "away").rename(tmp_path / name)
    write(tmp_path, {"ckpt-100.flax": files["ckpt-100.flax"][:-1]})
    assert not complete(step)


def test_hdf5_that_somebody_writes_is_not_complete(tmp_path: Path) -> None:
    data = bytearray(hdf5(3))
    data[11] = 1
    (tmp_path / "model_1.h5").write_bytes(data)
    assert not complete(tmp_path / "model_1.h5")


@pytest.mark.parametrize("name", [*FILES, "ckpt-100.index"])
@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_not_complete(
    name: str, plant: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / name
    plant(path)
    structure = structure_of(name, is_folder=False)
    assert structure is not None
    assert not is_complete(path, structure)


def test_a_terabyte_of_zeros_is_read_in_part(tmp_path: Path) -> None:
    for name, make in FILES.items():
        path = tmp_path / name
        path.write_bytes(make())
        os.truncate(path, 1 << 40)
        assert not complete(path)


def test_the_samples_are_small() -> None:
    assert max(len(make()) for make in FILES.values()) < 4096
    assert samples.__doc__


def test_an_archive_that_is_written_during_the_look_is_not_complete(tmp_path: Path) -> None:
    """That is no error of the disk."""
    path = tmp_path / "ckpt-1.npz"
    path.touch()

    class Growing(FileIO):
        num_seeks = 0

        def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
            self.num_seeks += 1
            if self.num_seeks == 3:  # its size is known by now
                path.write_bytes(FILES["params_100.npz"]())
            return super().seek(offset, whence)

    with Growing(path) as file:
        assert not is_zip(file)
