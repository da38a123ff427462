"""Every layout as its real library writes it: the newest step is seen, and a torn one is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from supervisor.checkpoints.completeness import is_complete
from supervisor.engines.closed_steps import ClosedSteps
from supervisor.protocol.checkpoint_layouts import structure_of
from supervisor.protocol.committed import committed_steps

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
HERE_TOO = (
    "numpy_files",
    "pickled",
    "flax_msgpack",
    "flax_legacy",
    "orbax_standard",
    "orbax_nested",
    "orbax_v1",
)
"""Writers whose libraries this project has itself."""
STEPS = {"clu": 10}


def newest(folder: Path) -> int | None:
    proven = partial(ClosedSteps().proves_later, closed=True)
    return next((step for step, _ in committed_steps(folder, proven=proven)), None)


def write(python: str, folder: Path, *names: str) -> None:
    subprocess.run(
        [python, str(HERE / "real_writers.py"), str(folder), *names],
        check=True,
        timeout=600,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
        },
    )


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_what_a_real_library_wrote_counts(name: str) -> None:
    assert newest(GOLDEN / name) == STEPS.get(name, 100)


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_no_beginning_of_what_a_real_library_wrote_is_complete(name: str, tmp_path: Path) -> None:
    for path in (GOLDEN / name).iterdir():
        structure = structure_of(path.name, is_folder=path.is_dir())
        if path.is_file() and structure is not None:
            whole, copy = path.read_bytes(), tmp_path / path.name
            for other in path.parent.glob(f"{path.stem}.*"):
                shutil.copy(other, tmp_path)
            for size in {*range(0, len(whole), 97), *range(max(0, len(whole) - 99), len(whole))}:
                copy.write_bytes(whole[:size])
                is_between_arrays = whole[size:].startswith(b"\x93NUMPY") and size > 0
                assert is_complete(copy, structure) is is_between_arrays, size


@pytest.mark.slow
def test_what_the_libraries_of_this_project_write_counts(tmp_path: Path) -> None:
    write(sys.executable, tmp_path, *HERE_TOO)
    assert {name: newest(tmp_path / name) for name in HERE_TOO} == dict.fromkeys(HERE_TOO, 100)


@pytest.mark.slow
@pytest.mark.skipif("LAYOUTS_VENV" not in os.environ, reason="make test-layouts gives it")
def test_what_all_libraries_write_counts(tmp_path: Path) -> None:
    write(f"{os.environ['LAYOUTS_VENV']}/bin/python", tmp_path)
    names = [path.name for path in tmp_path.iterdir()]
    assert {name: newest(tmp_path / name) for name in names} == {
        name: STEPS.get(name, 100) for name in names
    }
