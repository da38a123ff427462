"""Whatever somebody puts into our folders: nothing of it changes when we remove what is ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.protocol import removal
from supervisor.protocol.checkpoint_layouts import step_of
from supervisor.protocol.removal import NotOursError, Place
from tests.foreign import ENTRIES, HEX, SAMPLES, Entry, fingerprint, foreign, put

OF_PLACES = st.lists(st.sampled_from(sorted(SAMPLES.values())), max_size=6)


def candidates(root: Path) -> set[str]:
    """What one could think of removing: all that is there, links followed once, and each sample."""
    found = set(SAMPLES.values())
    for path in root.rglob("*"):
        found.add(str(path.relative_to(root)))
        with suppress(OSError):
            if path.is_symlink() and path.is_dir():
                found |= {str((path / name).relative_to(root)) for name in SAMPLES.values()}
    return found


def is_plain_file(root: Path, name: str) -> bool:
    """Whether it is a file, in folders that are no links."""
    path = root / name
    above = [one for one in path.parents if one.is_relative_to(root)]
    return path.is_file() and not any(one.is_symlink() for one in (path, *above))


@settings(deadline=None, max_examples=60)
@given(ENTRIES, OF_PLACES)
def test_a_file_goes_only_by_its_place_and_nothing_else_changes(
    entries: list[Entry], ours: list[str]
) -> None:
    planted = [(name.split("/"), "file", 0o644) for name in ours]
    with foreign(entries + planted) as (root, outside):
        before, away = fingerprint(root), fingerprint(outside)
        removed = set()
        for place in Place:
            for name in candidates(root):
                may_go = place.claims(name) and is_plain_file(root, name)
                with suppress(OSError):
                    if removal.remove_file(place, root / name, below=root):
                        assert may_go, (place, name)
                        removed.add(name)
                with suppress(NotOursError):
                    is_there = os.path.lexists(root / name)
                    gone = removal.remove_tree(
                        place, root / name, below=root, is_ours=lambda: False
                    )
                    assert not gone
                    assert not is_there or not place.claims(name)
        assert fingerprint(outside) == away
        assert fingerprint(root) == {
            name: told for name, told in before.items() if name not in removed
        }


OURS = ("commit_success.txt", "params/d/0a", "params/manifest.ocdbt", "_CHECKPOINT_METADATA")


@settings(deadline=None, max_examples=80)
@given(ENTRIES, st.booleans())
def test_a_tree_goes_whole_or_not_at_all(entries: list[Entry], moved: bool) -> None:
    with foreign([(["7", *parts], kind, mode) for parts, kind, mode in entries]) as (root, outside):
        with suppress(OSError):
            for name in OURS:
                put(root, outside, ["7", *name.split("/")], "file", 0o644)
        before, away = fingerprint(root), fingerprint(outside)
        known = {*OURS, "params", "params/d"}
        strange = {name for name in before if name.startswith("7/") and name[2:] not in known}
        under = f".supervise-evicted-7-{HEX}" if moved else None
        try:
            gone = removal.remove_tree(
                Place.STEP,
                root / "7",
                below=root,
                is_ours=lambda: True,
                is_expected=known.__contains__,
                renamed_to=under,
            )
        except NotOursError:
            assert fingerprint(root) == before
        else:
            assert not gone or not strange
            kept = {name for name in before if name != "7" and not name.startswith("7/")}
            assert fingerprint(root).keys() == (kept if gone else before.keys())
        assert fingerprint(outside) == away


@pytest.mark.parametrize("under", [None, f".supervise-evicted-7-{HEX}"])
def test_a_folder_that_comes_into_its_place_once_it_was_read_stays(
    under: str | None, tmp_path: Path
) -> None:
    """The same names are in it: only the folder itself tells them apart."""
    step, other = tmp_path / "7", tmp_path / "other"
    for folder in (step, other):
        folder.mkdir()
        (folder / "arrays").write_text(folder.name)

    def swapped() -> bool:
        step.rename(tmp_path / "away")
        other.rename(step)
        return True

    with suppress(NotOursError):
        removal.remove_tree(Place.STEP, step, below=tmp_path, is_ours=swapped, renamed_to=under)
    assert (step / "arrays").read_text() == "other"
    assert {path.name for path in tmp_path.iterdir()} == {"7", "away"}


def test_what_is_to_go_last_is_there_until_then(tmp_path: Path) -> None:
    step = tmp_path / "7"
    (step / "inner").mkdir(parents=True)
    for name in ("a", "proof", "inner/z", "first"):
        (step / name).touch()
    seen: list[str] = []
    unlink = os.unlink

    def watched(name: str, *, dir_fd: int) -> None:
        seen.append(name)
        unlink(name, dir_fd=dir_fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", watched)
        assert removal.remove_tree(
            Place.STEP, step, below=tmp_path, is_ours=lambda: True, remove_first=("first",),
            remove_last=("proof",),
        )  # fmt: skip
    assert (seen[0], seen[-1], not step.exists()) == ("first", "proof", True)


@settings(deadline=None, max_examples=60)
@given(ENTRIES)
def test_what_is_set_aside_is_what_it_was(entries: list[Entry]) -> None:
    with foreign(entries) as (root, outside):
        away = fingerprint(outside)
        for entry in list(root.iterdir()):
            before = fingerprint(entry)
            others = {one: fingerprint(one) for one in root.iterdir() if one.name != "aside"}
            with suppress(NotOursError):
                moved = removal.set_aside(entry, "aside", below=root)
                assert fingerprint(moved) == before
                assert not os.path.lexists(entry)
            for one, told in others.items():
                assert one == entry or fingerprint(one) == told
        assert fingerprint(outside) == away


def test_what_is_set_aside_takes_nobodys_name(tmp_path: Path) -> None:
    (tmp_path / "aside" / "7-1").mkdir(parents=True)
    (tmp_path / "aside" / "7-2").write_text("x")
    (tmp_path / "7").mkdir()
    assert removal.set_aside(tmp_path / "7", "aside", below=tmp_path).name == "7-3"
    (tmp_path / "8").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "aside")
    with pytest.raises(NotOursError, match="is a link"):
        removal.set_aside(tmp_path / "8", "linked", below=tmp_path)


@pytest.mark.parametrize("name", ["../x", "7/../../x", "7/.."])
def test_there_is_no_way_up(name: str, tmp_path: Path) -> None:
    (tmp_path / "root" / "7").mkdir(parents=True)
    (tmp_path / "x").mkdir()
    with pytest.raises((NotOursError, ValueError)):
        removal.remove_tree(
            Place.STEP, tmp_path / "root" / name, below=tmp_path / "root", is_ours=lambda: True
        )
    assert (tmp_path / "x").is_dir()


def test_nothing_is_written_through_what_stands_where_a_temporary_file_should(
    tmp_path: Path,
) -> None:
    target = tmp_path / "target"
    target.write_text("somebody's")
    path = tmp_path / ".summary.json.tmp"
    path.symlink_to(target)
    with pytest.raises(NotOursError, match="is a link"):
        removal.create_temporary(path, below=tmp_path)
    path.unlink()
    path.hardlink_to(target)
    with removal.create_temporary(path, below=tmp_path) as file:
        file.write(b"ours")
    assert target.read_text() == "somebody's"
    assert path.read_text() == "ours"


def test_objects_go_only_by_the_names_of_their_place() -> None:
    deleted = list[str]()
    with pytest.raises(NotOursError):
        removal.remove_objects(
            Place.SEGMENT, ["journal.jsonl.parts/1", "journal.jsonl"], deleted.append
        )
    assert deleted == []
    removal.remove_objects(Place.SEGMENT, ["journal.jsonl.parts/1"], deleted.append)
    assert deleted == ["journal.jsonl.parts/1"]


PRIVATELY = ["unshare", "--mount", "--propagation", "private"]


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*PRIVATELY, "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0 or not _can_mount(), reason="needs root that may mount")
def test_no_mount_point_is_crossed(tmp_path: Path) -> None:
    """A bind mount of the same disk, on the way and in a tree: in a namespace of its own."""
    outside = tmp_path / "outside"
    for name in ("7/params", "attempts", "0001"):
        (outside / name).mkdir(parents=True)
    (outside / "7" / "params" / "x").write_text("somebody's")
    (outside / "rank0.log").write_text("somebody's")
    root = tmp_path / "root"
    log = root / SAMPLES[Place.OUTPUT]
    log.parent.mkdir(parents=True)
    (root / "7" / "params").mkdir(parents=True)
    (root / "8").mkdir()
    script = f"""
        import subprocess
        from pathlib import Path
        from supervisor.protocol import removal
        from supervisor.protocol.removal import NotOursError, Place
        root, outside = Path({str(root)!r}), Path({str(outside)!r})
        def mount(source, target):
            subprocess.run(["mount", "--bind", source, target], check=True)
        mount(outside / "7" / "params", root / "7" / "params")
        mount(outside / "7", root / "8")
        mount(outside, root / {str(log.parent)!r})
        for step in ("7", "8"):
            try:
                removal.remove_tree(Place.STEP, root / step, below=root, is_ours=lambda: True)
            except NotOursError as error:
                print(error)
        try:
            removal.remove_file(Place.OUTPUT, root / {str(log)!r}, below=root)
        except NotOursError as error:
            print(error)
        try:
            removal.set_aside(root / "8", "foreign", below=root)
        except OSError as error:
            print(error)
    """
    before = fingerprint(outside)
    done = subprocess.run(
        [*PRIVATELY, sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert ["is a mount point" in line for line in lines] == [True, True, True, False], lines
    assert "busy" in lines[3]
    assert fingerprint(outside) == before


@pytest.mark.parametrize("name", ["params/d/0a", "params/d"])
@pytest.mark.parametrize("under", [None, f".supervise-evicted-7-{HEX}"])
def test_a_tree_of_which_something_vanishes_meanwhile_goes_whole(
    tmp_path: Path, name: str, under: str | None
) -> None:
    for one in OURS:
        put(tmp_path, tmp_path, ["7", *one.split("/")], "file", 0o644)

    def is_ours() -> bool:  # asked once the tree was read
        if (gone := tmp_path / "7" / name).is_dir():
            shutil.rmtree(gone)
        else:
            gone.unlink()
        return True

    step = tmp_path / "7"
    assert removal.remove_tree(Place.STEP, step, below=tmp_path, is_ours=is_ours, renamed_to=under)
    assert list(tmp_path.iterdir()) == []


def test_what_is_left_under_the_other_name_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "7" / "params").mkdir(parents=True)
    (tmp_path / "7" / "params" / "0").touch()
    under = f".supervise-evicted-7-{HEX}"

    def is_ours() -> bool:
        shutil.rmtree(tmp_path / "7" / "params")
        (tmp_path / "7" / "params").touch()  # in the place of the folder
        return True

    with pytest.raises(NotADirectoryError):
        removal.remove_tree(
            Place.STEP, tmp_path / "7", below=tmp_path, is_ours=is_ours, renamed_to=under
        )
    assert (tmp_path / under).exists()


def test_what_is_set_aside_elsewhere_has_a_name_that_no_step_has(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    step = tmp_path / "checkpoints" / "ckpt_7"
    step.mkdir(parents=True)
    moved = removal.set_aside(
        step, "damaged", below=step.parent, into=tmp_path / "run", suffix=".damaged"
    )
    assert moved == tmp_path / "run" / "damaged" / "ckpt_7-1.damaged"
    assert moved.is_dir()
    assert step_of(moved.name) is None
    assert step_of("ckpt_7-1") == 1, "without the suffix it would be a step"
