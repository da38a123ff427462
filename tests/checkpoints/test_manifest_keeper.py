"""The manifests of a directory follow its steps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.checkpoints.manifest_keeper import ManifestKeeper, keeps_open_files
from supervisor.checkpoints.step_check import CheckedSteps, check_newest
from supervisor.checkpoints.step_manifest import (
    FOLDER,
    StepManifest,
    make_manifest,
    manifest_file,
    manifest_folder,
    write_manifest,
)
from supervisor.protocol.committed import MARKER
from tests.running import eventually, may_mount


class Kept:
    """A keeper of the steps in `root/checkpoints`, with model_dir `root`."""

    def __init__(self, root: Path, began: float = 0.0) -> None:
        self.root, self.directory = root, root / "checkpoints"
        self.directory.mkdir(exist_ok=True)
        self.told: list[str] = []
        self.now = 0.0
        self.keeper = ManifestKeeper(
            self.directory, root, self.told.append, lambda: self.now, began
        )

    def save(self, step: str, content: str = "weights") -> Path:
        path = self.directory / step
        path.mkdir()
        (path / "data").write_text(content)
        (path / MARKER).touch()
        return path

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.keeper.look()

    @property
    def manifests(self) -> set[str]:
        folder = manifest_folder(self.root, self.directory)
        return {path.name for path in folder.glob("*.json")} if folder.exists() else set()


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_the_newest_step_comes_first(kept: Kept) -> None:
    for step in ("1", "2", "10"):
        kept.save(step)
    kept.look()
    assert kept.manifests == {"10.json"}
    kept.look(3)
    assert kept.manifests == {"1.json", "2.json", "10.json"}
    assert kept.told == []


def test_only_committed_steps_have_one(kept: Kept) -> None:
    (kept.directory / "1").mkdir()
    (kept.directory / "2.orbax-checkpoint-tmp").mkdir()
    (kept.directory / "2.orbax-checkpoint-tmp" / MARKER).touch()
    (kept.directory / "ckpt-3.pt").write_text("nothing commits it")
    kept.look(3)
    assert kept.manifests == set()


def test_the_manifest_of_a_deleted_step_is_removed(kept: Kept) -> None:
    for step in ("1", "2"):
        kept.save(step)
    kept.look(3)
    shutil.rmtree(kept.directory / "1")
    kept.look()
    assert kept.manifests == {"2.json"}


def test_manifests_outlive_a_disk_that_is_away(kept: Kept) -> None:
    kept.save("1")
    kept.look(2)
    kept.directory.rename(kept.root / "away")
    kept.look()
    kept.directory.mkdir()
    kept.look()
    assert kept.manifests == {"1.json"}


def test_a_step_that_is_saved_again_is_recorded_again(kept: Kept) -> None:
    kept.save("5", "old")
    kept.look(2)
    shutil.rmtree(kept.directory / "5")
    step = kept.save("5", "new weights")
    late = step.stat().st_mtime + 10
    for path in step.iterdir():
        os.utime(path, (late, late))
    kept.look()
    checked = check_newest(kept.directory, kept.root, lambda: False)
    assert (checked.newest, checked.why_unverified, checked.damaged) == (5, None, ())


def test_damage_is_not_recorded(kept: Kept) -> None:
    step = kept.save("5")
    kept.look(2)
    (step / "data").write_text("weiGhts")
    os.utime(step)
    kept.look(2)
    assert check_newest(kept.directory, kept.root, lambda: False).damaged[0].names == ("data",)


def test_what_cannot_be_written_is_told_once_and_tried_again(kept: Kept) -> None:
    kept.save("1")
    (kept.root / FOLDER).write_text("a file is in the way")
    kept.look(3)
    assert len(kept.told) == 1
    assert kept.told[0].startswith(f"no manifests are made now of the steps in {kept.directory}: ")
    (kept.root / FOLDER).unlink()
    in_the_way = manifest_folder(kept.root, kept.directory) / "1.json"
    in_the_way.mkdir(parents=True)
    kept.look(3)
    assert len(kept.told) == 2
    assert kept.told[1].startswith(f"{kept.directory / '1'} gets no manifest now: ")
    in_the_way.rmdir()
    kept.look()
    assert kept.manifests == set(), "it is not read again at once"
    kept.now += 60.0
    kept.look()
    assert kept.manifests == {"1.json"}
    assert len(kept.told) == 2


def test_one_hostile_step_does_not_keep_the_others_from_theirs(kept: Kept) -> None:
    kept.save("1")
    (kept.save("2") / "endless").symlink_to("/dev/zero")
    os.mkfifo(kept.save("3") / "fifo")
    kept.look(3)
    assert kept.manifests == {"1.json"}
    assert len(kept.told) == 2


@pytest.mark.parametrize("missing", [MARKER, "data"])
def test_a_step_that_has_lost_its_marker_is_damaged_all_the_same(kept: Kept, missing: str) -> None:
    """A program that goes by the name alone would restore it."""
    kept.save("1")
    step = kept.save("2")
    kept.look(3)
    (step / missing).unlink()
    checked = check_newest(kept.directory, kept.root, lambda: False)
    assert [each.step for each in checked.damaged] == [2]
    assert checked.damaged[0].reason == f"{missing} is missing"
    assert checked.newest == 1


def test_the_check_ends_with_the_first_step_that_is_right(kept: Kept) -> None:
    for step in ("1", "2", "3", "4"):
        kept.save(step)
    kept.look(5)
    for step in ("1", "3", "4"):
        (kept.directory / step / "data").write_text("damaged")
    checked = check_newest(kept.directory, kept.root, lambda: False)
    assert [each.step for each in checked.damaged] == [4, 3]
    assert (checked.newest, checked.why_unverified, checked.num_bytes) == (2, None, len("weights"))


def test_a_step_without_a_manifest_is_used_unverified(kept: Kept) -> None:
    kept.save("1")
    kept.look(2)
    kept.save("2")
    checked = check_newest(kept.directory, kept.root, lambda: False)
    assert (checked.newest, checked.why_unverified) == (2, "it has no manifest")
    assert not checked.damaged


def test_an_unfinished_save_is_passed_over(kept: Kept) -> None:
    kept.save("1")
    kept.look(2)
    (kept.directory / "2").mkdir()
    checked = check_newest(kept.directory, kept.root, lambda: False)
    assert (checked.newest, checked.why_unverified) == (1, None)


def test_where_there_is_nothing_nothing_is_found(tmp_path: Path) -> None:
    checked = check_newest(tmp_path / "nowhere", tmp_path, lambda: False)
    assert (checked.newest, checked.damaged) == (None, ())


ON_A_FULL_DISK = """
import sys
import time
from collections.abc import Callable
from pathlib import Path
from supervisor.checkpoints.manifest_keeper import ManifestKeeper

directory, model_dir = map(Path, sys.argv[1:])
filler = model_dir / "filler"
try:
    with filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError:
    pass
told, now = [], [0.0]
keeper = ManifestKeeper(directory, model_dir, told.append, lambda: now[0])
for _ in range(3):
    keeper.look()
    now[0] += 60.0
print(told, [path.name for path in model_dir.rglob("*.json*")])
filler.unlink()
keeper.look()
print(told, [path.name for path in model_dir.rglob("*.json*")])
"""


@pytest.mark.skipif(not may_mount(), reason="only root can mount a file system")
def test_a_full_disk_is_told_once_and_no_half_of_a_manifest_is_left(kept: Kept) -> None:
    kept.save("1")
    disk = kept.root / "small"
    disk.mkdir()
    mounted = f'mount -t tmpfs -o size=64k none "{disk}" && exec "$@"'
    program = [sys.executable, "-c", ON_A_FULL_DISK, str(kept.directory), str(disk)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted, "sh", *program],
        capture_output=True,
        text=True,
        check=True,
    )
    full, free = done.stdout.splitlines()
    told = (
        f"['no manifests are made now of the steps in {kept.directory}: No space left on device']"
    )
    assert full == f"{told} []"
    assert free == f"{told} ['1.json']"


@pytest.mark.parametrize(
    ("kind", "keeps"),
    [
        ("nfs", True),
        ("nfs4", True),
        ("fuse", True),
        ("fuse.sshfs", True),
        ("fuseblk", True),
        ("ext4", False),
        ("tmpfs", False),
        ("overlay", False),
    ],
)
def test_where_a_reader_would_disturb_the_program_nothing_is_read(kind: str, keeps: bool) -> None:
    assert keeps_open_files(kind) is keeps


def newest(kept: Kept) -> CheckedSteps:
    return check_newest(kept.directory, kept.root, lambda: False)


def save_again(step: Path) -> None:
    """Save a step in place, as a program does that went back: other weights, an old config."""
    shutil.rmtree(step)
    step.mkdir()
    (step / "data").write_text("other weights")
    shutil.copy2(step.parent.parent / "config", step)
    (step / MARKER).touch()


def write_again(step: Path) -> None:
    """The same into the files that are there. One of them stays."""
    (step / "data").write_text("other weights")
    (step / MARKER).touch()


def save_with_an_earlier_clock(step: Path) -> None:
    save_again(step)
    for path in step.iterdir():
        os.utime(path, (1.0e9, 1.0e9))


@pytest.mark.parametrize("again", [save_again, write_again, save_with_an_earlier_clock])
def test_a_step_saved_again_is_not_damaged(kept: Kept, again: Callable[[Path], None]) -> None:
    config = kept.root / "config"
    config.write_text("an old file")
    os.utime(config, (1.5e9, 1.5e9))
    step = kept.save("5")
    shutil.copy2(config, step)
    kept.look(2)
    again(step)
    checked = newest(kept)
    assert (checked.newest, checked.damaged) == (5, ())
    assert checked.why_unverified == "it was saved again after its manifest was made"
    kept.look(2)
    assert newest(kept).why_unverified is None, "its manifest is made again"
    (step / "data").write_text("other weiGhts")
    assert [each.reason for each in newest(kept).damaged] == [
        "data does not have the content that was committed"
    ]


def test_a_kill_in_a_save_in_place_leaves_a_damaged_step(kept: Kept) -> None:
    step = kept.save("5")
    kept.look(2)
    (step / "data").write_text("half of the new wei")
    assert [each.step for each in newest(kept).damaged] == [5]


def test_a_save_again_that_is_not_complete_does_not_count(kept: Kept) -> None:
    kept.save("4")
    step = kept.save("5")
    kept.look(3)
    shutil.rmtree(step)
    step.mkdir()
    (step / "data").write_text("other weights")
    checked = newest(kept)
    assert (checked.newest, checked.damaged) == (4, ())


@pytest.mark.parametrize("number", [0o755, 0o700])
def test_chmod_and_chown_are_no_save(kept: Kept, number: int) -> None:
    step = kept.save("5")
    kept.look(2)
    for path in step.iterdir():
        path.chmod(number)
    assert newest(kept).why_unverified is None
    (step / "data").write_text("weiGhts")
    assert [each.step for each in newest(kept).damaged] == [5]


def test_a_backup_that_is_put_back_is_verified(kept: Kept) -> None:
    step = kept.save("5")
    kept.look(2)
    shutil.copytree(step, kept.root / "backup")
    shutil.rmtree(step)
    shutil.copytree(kept.root / "backup", step)
    checked = newest(kept)
    assert (checked.newest, checked.why_unverified) == (5, None)


def test_what_a_process_writes_to_is_not_damaged(kept: Kept) -> None:
    step = kept.save("5")
    kept.look(2)
    data = (step / "data").stat()
    (step / "data").write_text("half")
    checked = check_newest(
        kept.directory, kept.root, lambda: False, lambda files: (data.st_dev, data.st_ino) in files
    )
    assert (checked.newest, checked.damaged) == (5, ())
    assert checked.why_unverified == "a process is writing to it"


def test_steps_from_before_the_job_are_not_its_own(tmp_path: Path) -> None:
    """Another program may have saved them: it may be writing them again at this moment."""
    before = Kept(tmp_path)
    foreign = before.save("b_100")
    commit = (foreign / MARKER).stat().st_ctime
    assert eventually(lambda: time.time() > commit)
    kept = Kept(tmp_path, began=time.time())
    kept.save("a_4")
    kept.save("a_8")
    kept.look(5)
    assert kept.manifests == {"a_4.json", "a_8.json"}
    (foreign / "data").write_text("new")
    checked = newest(kept)
    assert (checked.newest, checked.why_unverified, checked.damaged) == (8, None, ())
    for name in ("a_4", "a_8"):
        (kept.directory / name / "data").write_text("weiGhts")
    checked = newest(kept)
    assert [each.step for each in checked.damaged] == [8, 4]
    assert checked.newest is None, "the other program's step is no checkpoint of this job"
    later = Kept(tmp_path, began=time.time() + 60.0)
    later.look(5)
    assert later.manifests == {"a_4.json", "a_8.json"}, "what is of before stays so"


def test_a_step_from_before_the_job_that_it_saves_again_is_its_own(tmp_path: Path) -> None:
    step = Kept(tmp_path).save("5")
    kept = Kept(tmp_path, began=time.time() + 1.0)
    kept.look(2)
    assert (kept.manifests, newest(kept).newest) == (set(), 5)
    assert newest(kept).why_unverified == "it was there before this job began"
    write_again(step)
    kept.look()
    assert kept.manifests == {"5.json"}
    assert newest(kept).why_unverified is None


def test_where_two_programs_save_nothing_is_moved(kept: Kept) -> None:
    kept.save("a_4")
    kept.save("b_100")
    kept.look(3)
    for path in kept.directory.iterdir():
        (path / "data").write_text("weiGhts")
    checked = newest(kept)
    assert (checked.newest, checked.damaged) == (100, ())
    assert checked.why_unverified is not None
    assert "a_4, b_100" in checked.why_unverified


def test_a_step_with_the_longest_name_has_a_manifest_too(kept: Kept) -> None:
    name = "x" * 252 + "_90"
    kept.save(name)
    kept.save("x" * 10 + "_80")
    kept.look(3)
    assert kept.told == []
    assert len(kept.manifests) == 2
    (kept.directory / name / "data").write_text("weiGhts")
    shutil.rmtree(kept.directory / ("x" * 10 + "_80"))
    kept.look()
    assert len(kept.manifests) == 1
    assert [each.step for each in newest(kept).damaged] == [90]


@pytest.mark.parametrize("way", ["dangling link", "link to an empty folder", "mount point"])
def test_a_disk_that_is_not_mounted_is_no_damage(kept: Kept, way: str) -> None:
    disk = kept.root / "disk"
    disk.mkdir()
    for name in ("4", "5"):
        step = kept.save(name)
        if way != "mount point":
            step.rename(disk / name)
            step.symlink_to(disk / name)
    if way == "mount point":
        kept.look(3)
        for name in ("4", "5"):
            (kept.directory / name).rename(disk / name)
            (kept.directory / name).mkdir()
    else:
        for name in ("4", "5"):
            write_manifest(
                manifest_file(manifest_folder(kept.root, kept.directory), name),
                recorded(disk / name),
                below=kept.root,
            )
        disk.rename(kept.root / "away")
        disk.mkdir()
        if way == "link to an empty folder":
            (disk / "5").mkdir()
    checked = newest(kept)
    assert (checked.damaged, checked.newest) == ((), None)
    assert checked.unavailable is not None
    assert checked.unavailable[0] == 5


def recorded(step: Path) -> StepManifest:
    manifest = make_manifest(step)
    assert manifest is not None
    return manifest
