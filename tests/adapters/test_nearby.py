"""The look around for checkpoints costs little, whatever is around."""

from __future__ import annotations

import json
import os
import pickle
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.adapters.stores import nearby
from supervisor.adapters.stores.nearby import checkpoints_nearby, found_nearby
from supervisor.config.own_layout import OwnLayout
from supervisor.files.live_status import STATUS
from supervisor.files.segments import JOURNAL


def test_no_more_entries_are_listed_than_the_bound_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for number in range(60):
            (tmp_path / folder / f".hidden{number}").touch()
    listed: list[str] = []
    scandir = os.scandir

    def noted(entry: os.DirEntry[str]) -> os.DirEntry[str]:
        listed.append(entry.name)
        return entry

    @contextmanager
    def counting(path: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(path) as listing:
            yield map(noted, listing)

    monkeypatch.setattr(os, "scandir", counting)
    monkeypatch.setattr(nearby, "_MAX_ENTRIES", 100)
    found = found_nearby(None, [tmp_path], 0.0)
    assert found.startswith("nothing like a checkpoint was found below")
    assert "set trainer.init.checkpoint.directory if they are elsewhere" in found
    assert len(listed) == 100


def test_a_folder_far_below_is_named(tmp_path: Path) -> None:
    saves = tmp_path / "second" / "artifacts" / "run7" / "saves" / "deep"
    saves.mkdir(parents=True)
    (saves / "state_000345.npz").touch()
    assert f"{saves}/state_000345.npz" in found_nearby(None, [tmp_path], 0.0)


def test_a_file_that_is_overwritten_in_place_is_named_with_what_to_do(tmp_path: Path) -> None:
    last = tmp_path / "out1" / "last.weights.h5"
    last.parent.mkdir()
    last.touch()
    found = found_nearby(None, [tmp_path], 2000.0)
    assert found.startswith(f"changed since the start, but overwritten in place: {last};")
    assert "such as ckpt-100.h5 (see docs/reference/layouts.md)" in found
    os.utime(last, (1000.0, 1000.0))
    assert "overwritten" not in found_nearby(None, [tmp_path], 2000.0), "nobody has written it"


def test_a_step_that_is_a_link_is_named_as_one(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "abc"
    blob.parent.mkdir()
    blob.write_bytes(pickle.dumps({}))
    link = tmp_path / "out" / "step_5.pkl"
    link.parent.mkdir()
    link.symlink_to(blob)
    found = found_nearby(None, [tmp_path], 2000.0)
    assert found.startswith(f"changed since the start, but a link, which proves no save: {link};")
    assert "to the folder that the link leads to" in found


def test_what_is_older_than_the_attempt_is_named_where_nothing_newer_is(tmp_path: Path) -> None:
    (tmp_path / "ckpt7").touch()
    os.utime(tmp_path / "ckpt7", (1000.0, 1000.0))
    told = "but in no known checkpoint layout: "
    found = found_nearby(None, [tmp_path], 2000.0)
    assert found.startswith(f"there since before the start, {told}{tmp_path}/ckpt7;")
    (tmp_path / "ckpt8").touch()
    assert found_nearby(None, [tmp_path], 2000.0).startswith(
        f"changed since the start, {told}{tmp_path}/ckpt8;"
    )


def test_a_complete_step_that_nothing_commits_is_told_as_such(tmp_path: Path) -> None:
    for number, at in ((25, 3000.0), (3, 1000.0)):
        step = tmp_path / "results" / f"step_{number}" / f"ckpt_{number}.pkl"
        step.parent.mkdir(parents=True)
        step.write_bytes(pickle.dumps({"step": number}))
        os.utime(step, (at, at))
    newest = tmp_path / "results" / "step_25"
    for roots, shared in (([tmp_path], []), ([tmp_path / "run"], [tmp_path])):
        found = found_nearby(tmp_path / "run" / "checkpoints", roots, 2000.0, shared)
        assert f"{newest} (newest: step 25)" in found
        assert "nobody saw this program write and close them" in found
        assert "set trainer.init.checkpoint.directory" in found
        assert ("step_3 (newest: step 3)" in found) == (not shared), "it may be another job's"
    there = found_nearby(newest, [newest], 2000.0)
    assert there.startswith(f"complete checkpoints are in {newest} (newest: step 25)")
    assert "trainer.init.checkpoint.directory" not in there


def test_what_a_program_overwrites_in_the_working_directory_is_named(tmp_path: Path) -> None:
    for name, at in (("last.pkl", 3000.0), ("base.pkl", 1000.0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, at))
    found = found_nearby(None, [tmp_path / "run"], 2000.0, [tmp_path])
    assert f"overwritten in place: {tmp_path}/last.pkl; without a step in its name" in found
    assert found.endswith("(see docs/reference/layouts.md)")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("step-40.txt", r"step-(\d+)\.txt"),
        ("snap_00020.pkl.gz", r"snap_(\d+)\.pkl\.gz"),
        ("run2_step40.bin", r"run\d+_step(\d+)\.bin"),
        ("ckpt7", r"ckpt(\d+)"),
        ("ckpt7.mp3", r"ckpt(\d+)\.mp\d+"),
        ("ckpt-7.npz", None),
        ("last.pkl", None),
    ],
)
def test_a_pattern_for_numbered_files_is_named(
    tmp_path: Path, name: str, pattern: str | None
) -> None:
    (tmp_path / name).touch()
    found = found_nearby(tmp_path, [tmp_path], 0.0)
    assert f"{tmp_path}/{name}; " in found
    told = re.search(r"give --set 'trainer\.init\.checkpoint\.pattern=(\S+)' if", found)
    assert (told[1] if told else None) == pattern
    assert pattern is None or re.fullmatch(pattern, name)


def test_where_nobody_looks_the_folder_is_named_beside_the_pattern(tmp_path: Path) -> None:
    """The pattern alone would change nothing: nobody saw the program write there."""
    (tmp_path / "saves").mkdir()
    (tmp_path / "saves" / "s_20.npz").touch()
    directory = f"--set trainer.init.checkpoint.directory={tmp_path}/saves"
    pattern = r"--set 'trainer.init.checkpoint.pattern=s_(\d+)\.npz'"
    assert f"; give {pattern} {directory} if only" in found_nearby(tmp_path, [tmp_path], 0.0)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        ("rundir/snap.%05d", r"snap\.(\d+)"),
        ("weights/model_%d.json", r"model_(\d+)\.json"),
        ("ckpt/round-%d.json", r"round-(\d+)\.json"),
        ("x/run3_%d.dat", r"run\d+_(\d+)\.dat"),
        ("data/part-%d.bin", None),
        ("weights/train_log_%d.json", None),
        ("saves/figure_%d.png", None),
        ("saves/save_{seconds}%02d.json", None),
    ],
)
@pytest.mark.parametrize("is_named", [True, False])
def test_a_pattern_is_named_for_a_row_of_new_files_of_any_suffix(
    tmp_path: Path, names: str, pattern: str | None, is_named: bool
) -> None:
    names = names.format(seconds=int(time.time()) // 100)  # not in the id: workers must agree on it
    for number in (10, 20, 40):
        file = tmp_path / (names % number)
        file.parent.mkdir(exist_ok=True)
        file.write_text("x")
        os.utime(file, (2000.0 + number, 2000.0 + number))
    place = file.parent if is_named else tmp_path / "checkpoints"
    found = found_nearby(place, [tmp_path], 2000.0, is_named=is_named)
    told = re.search(r"give --set 'trainer\.init\.checkpoint\.pattern=(\S+)' ", found)
    if is_named and names.startswith("data"):
        pattern = r"part-(\d+)\.bin"  # whoever names the folder says that it is none for data
    assert (told[1] if told else None) == pattern
    if pattern is not None:
        assert found.startswith(
            f"changed since the start, but in no known checkpoint layout: {file}, "
        )
        assert (f"directory={file.parent}" in found) is not is_named
    assert ("set trainer.init.checkpoint.directory if they" in found) is (
        told is None and not is_named
    )
    assert "no known" not in found_nearby(place, [tmp_path], 3000.0), "all are from before"


def test_of_files_written_at_one_moment_the_highest_number_is_told_first(tmp_path: Path) -> None:
    for number in (9, 10, 11):
        file = tmp_path / f"snap.{number}"
        file.write_text("x")
        os.utime(file, (2000.0, 2000.0))
    found = found_nearby(tmp_path, [tmp_path], 2000.0, is_named=True)
    assert f": {tmp_path}/snap.11, {tmp_path}/snap.10, {tmp_path}/snap.9; " in found


def test_a_single_file_or_what_nothing_was_written_to_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "model_1.json").write_text("x")
    (tmp_path / "model_2.json").touch()
    assert found_nearby(tmp_path, [tmp_path], 0.0).startswith("nothing like a checkpoint")


@pytest.mark.parametrize(("folder", "is_told"), [("snaps", True), ("other", False)])
def test_while_a_job_may_go_on_a_row_must_say_that_it_is_one(
    tmp_path: Path, folder: str, is_told: bool
) -> None:
    (tmp_path / folder).mkdir()
    for number in (1, 2, 3):
        (tmp_path / folder / f"x{number}.dat").write_text("x")
    for only_whole in (True, False):
        found = checkpoints_nearby(None, [tmp_path], 0.0, only_new=True, only_whole=only_whole)
        assert (found is not None) is is_told


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (None, "commit_success.txt is in it: write that file last, or describe its name"),
        (OwnLayout(r"step_(\d+)", "DONE"), "DONE is in it: write that file last (see"),
    ],
)
def test_of_a_folder_of_files_the_one_that_is_missing_is_named(
    tmp_path: Path, own: OwnLayout | None, told: str
) -> None:
    for step in (10, 20):
        folder = tmp_path / f"step_{step}"
        folder.mkdir()
        for name in ("params.npz", "opt.npz"):
            (folder / name).touch()
            os.utime(folder / name, (step, step))
        os.utime(folder, (step, step))
    found = found_nearby(None, [tmp_path], 0.0, (), own)
    assert f": {tmp_path}/step_20, {tmp_path}/step_10; a folder counts once {told}" in found


@pytest.mark.parametrize(
    ("own", "content", "told"),
    [
        (
            OwnLayout(r"s_(\d+)\.bin", None),
            b"x",
            "complete checkpoints are in {} (newest: step 20)",
        ),
        (OwnLayout(r"s_(\d+)\.pkl", None), pickle.dumps({}), "complete checkpoints are in {} (n"),
        (
            OwnLayout(r"s_(\d+)\.pkl", None),
            b"cut off",
            "but in no known checkpoint layout: {}/s_20",
        ),
        (OwnLayout(r"s_(\d+)", "DONE"), None, "committed checkpoints are in {} (newest: step 20)"),
        (
            OwnLayout(r"t_(\d+)\.pkl", None),
            pickle.dumps({}),
            "in no known checkpoint layout: {}/s_",
        ),
    ],
)
def test_steps_of_a_layout_that_the_config_describes_are_told_as_such(
    tmp_path: Path, own: OwnLayout, content: bytes | None, told: str
) -> None:
    folder = tmp_path / "saves"
    step = folder / ("s_20" if own.marker else "s_20.bin" if "bin" in own.pattern else "s_20.pkl")
    folder.mkdir()
    if content is None:
        step.mkdir()
        (step / "DONE").touch()
    else:
        step.write_bytes(content)
    found = found_nearby(tmp_path / "checkpoints", [tmp_path], 0.0, (), own)
    assert told.format(folder) in found
    is_found = "no known" not in told
    assert (f"(--set trainer.init.checkpoint.directory={folder})" in found) == is_found


class KindUnknown:
    """An entry of a file system that lists no kinds, and is gone when it is asked for its own."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry = entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        raise OSError(f"Stale file handle, links followed: {follow_symlinks}")


def test_an_entry_that_goes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ckpt7").touch()
    (tmp_path / "gone").touch()
    scandir = os.scandir

    @contextmanager
    def without_kinds(path: Path) -> Iterator[Iterator[KindUnknown]]:
        with scandir(path) as listing:
            yield map(KindUnknown, listing)

    monkeypatch.setattr(os, "scandir", without_kinds)
    assert f"no known checkpoint layout: {tmp_path}/ckpt7;" in found_nearby(None, [tmp_path], 0.0)


def save(place: Path, step: int) -> None:
    (place / str(step)).mkdir(parents=True)
    (place / str(step) / "DONE").touch()


def test_what_another_job_saves_is_left_out_unless_our_own_place_is_in_it(tmp_path: Path) -> None:
    """Its status.json says where; an earlier version has not told."""
    own, ours, theirs = OwnLayout(r"(\d+)", "DONE"), tmp_path / "mine", tmp_path / "saves-a"
    for place in (theirs, tmp_path / "b" / "checkpoints"):
        save(place, 7)
    for job in (ours, tmp_path / "a", tmp_path / "b"):
        job.mkdir(exist_ok=True)
        (job / JOURNAL).touch()
    (tmp_path / "b" / STATUS).write_text("{}")

    def told(place: Path) -> str:
        (tmp_path / "a" / STATUS).write_text(json.dumps({"checkpoints": str(place)}))
        return found_nearby(tmp_path / "wrong", [ours, tmp_path], 0.0, own=own)

    assert told(theirs).startswith("nothing like a checkpoint was found below")
    assert told(tmp_path).startswith(f"committed checkpoints are in {theirs} (newest: step 7): set")
    save(tmp_path / "mine" / "out", 3)
    assert f"are in {ours}/out (newest: step 3): set" in told(theirs)
