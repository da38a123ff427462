"""A damaged checkpoint is moved whole, to where it is no step; a check can be ended early."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from supervisor.adapters.stores.verified_steps import StepCheck, set_aside_damaged
from supervisor.checkpoints.step_check import CheckedSteps, DamagedStep
from supervisor.checkpoints.step_manifest import (
    make_manifest,
    manifest_file,
    manifest_folder,
    write_manifest,
)
from supervisor.protocol.committed import MARKER, committed_steps
from tests.foreign import fingerprint
from tests.running import PATIENCE, descriptors, eventually

OTHER_DISK = Path("/dev/shm")
HERE = Path(tempfile.gettempdir())


def damaged_step(directory: Path, model_dir: Path) -> DamagedStep:
    """A step that has its manifest, and has lost a file since."""
    step = directory / "ckpt_7"
    (step / "default").mkdir(parents=True)
    (step / MARKER).touch()
    (step / "default" / "data").write_text("weights")
    manifest = make_manifest(step)
    assert manifest is not None
    place = manifest_file(manifest_folder(model_dir, directory), step.name)
    write_manifest(place, manifest, below=model_dir)
    (step / "default" / "data").write_text("weiGhts")
    os.utime(step / "default" / "data", (0, 0))
    return DamagedStep(7, step, {"default/data": "does not have the content", "a\nb": "is missing"})


def finished(check: StepCheck) -> CheckedSteps:
    try:
        assert select.select([check.descriptor], [], [], PATIENCE)[0]
        return check.result()
    finally:
        check.close()


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


def test_it_is_moved_whole_below_model_dir(tmp_path: Path, model_dir: Path) -> None:
    directory = tmp_path / "out"
    damaged = damaged_step(directory, model_dir)
    before = fingerprint(damaged.path)
    moved = set_aside_damaged(damaged, model_dir)
    assert moved == model_dir / "damaged_checkpoints" / "ckpt_7-1.damaged"
    assert fingerprint(moved) == before
    assert list(directory.iterdir()) == [], "nothing is added to the program's folder"
    assert list(committed_steps(moved.parent)) == []
    note = moved.with_name("ckpt_7-1.damaged.txt").read_text()
    assert str(damaged.path) in note
    assert "'default/data' does not have the content" in note
    assert "'a\\nb' is missing" in note


def test_a_step_that_a_person_moves_back_counts(tmp_path: Path, model_dir: Path) -> None:
    damaged = damaged_step(tmp_path / "out", model_dir)
    assert finished(StepCheck(damaged.path.parent, model_dir)).damaged
    set_aside_damaged(damaged, model_dir).rename(damaged.path)
    found = finished(StepCheck(damaged.path.parent, model_dir))
    assert (found.newest, found.why_unverified) == (7, "it has no manifest")


@pytest.mark.skipif(
    not OTHER_DISK.is_dir() or OTHER_DISK.stat().st_dev == HERE.stat().st_dev,
    reason="there is no other disk",
)
def test_on_another_disk_it_stays_there(model_dir: Path) -> None:
    with tempfile.TemporaryDirectory(dir=OTHER_DISK) as name:
        damaged = damaged_step(Path(name), model_dir)
        before = fingerprint(damaged.path)
        moved = set_aside_damaged(damaged, model_dir)
        assert moved == Path(name, "supervise_damaged_checkpoints", "ckpt_7-1.damaged")
        assert fingerprint(moved) == before
        assert moved.with_name("ckpt_7-1.damaged.txt").is_file()
        assert list(committed_steps(Path(name))) == []
        assert list((model_dir / "damaged_checkpoints").iterdir()) == []


def test_a_step_that_is_gone_is_no_error_of_the_disk(tmp_path: Path, model_dir: Path) -> None:
    damaged = DamagedStep(7, tmp_path / "7", {"data": "is missing"})
    with pytest.raises(FileNotFoundError):
        set_aside_damaged(damaged, model_dir)


KILLED_AFTER_THE_MOVE = """
import os, sys
from pathlib import Path
from supervisor.adapters.stores.verified_steps import set_aside_damaged
from supervisor.checkpoints.step_check import DamagedStep

rename = os.rename
os.rename = lambda *names, **folders: (rename(*names, **folders), os._exit(9))
set_aside_damaged(DamagedStep(7, Path(sys.argv[1]), {"data": "is missing"}), Path(sys.argv[2]))
"""


def test_a_kill_right_after_the_move_leaves_the_note(tmp_path: Path, model_dir: Path) -> None:
    step = damaged_step(tmp_path / "out", model_dir).path
    command = [sys.executable, "-c", KILLED_AFTER_THE_MOVE, str(step), str(model_dir)]
    assert subprocess.run(command, check=False).returncode == 9
    assert {path.name for path in (model_dir / "damaged_checkpoints").iterdir()} == {
        "ckpt_7-1.damaged",
        "ckpt_7-1.damaged.txt",
    }


def test_nothing_is_moved_through_a_link(tmp_path: Path, model_dir: Path) -> None:
    damaged = damaged_step(tmp_path / "out", model_dir)
    (model_dir / "damaged_checkpoints").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="is a link"):
        set_aside_damaged(damaged, model_dir)
    assert damaged.path.is_dir()


def test_a_check_that_is_ended_leaves_nothing_open(tmp_path: Path, model_dir: Path) -> None:
    damaged_step(tmp_path / "out", model_dir)
    before = descriptors()
    check = StepCheck(tmp_path / "out", model_dir)
    check.close()
    finished(StepCheck(tmp_path / "out", model_dir))
    assert eventually(lambda: descriptors() <= before)
