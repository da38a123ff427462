"""A manifest finds every change of a step's files, and nothing where there is none."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.checkpoints.step_check import check_newest
from supervisor.checkpoints.step_manifest import (
    StepManifest,
    StoppedError,
    damage_of,
    is_saved_anew,
    make_manifest,
    manifest_file,
    manifest_folder,
    read_manifest,
    write_manifest,
)
from supervisor.protocol.committed import METADATA
from supervisor.protocol.passage import NotOursError

GOLDEN = Path(__file__).parent / "golden_manifests"
"""Step 100, and its manifest as it was written when the format began."""
ODD_NAMES = ["a b", "-rf", "é", "a\nb", os.fsdecode(b"\xff\xfe"), "%41", "d/" + "x" * 200]


def save(step: Path, at: int = 1_700_000_000) -> Path:
    """Make a step as Orbax does, of one save: all of its files are as old as the commit."""
    files = {
        METADATA: b'{"commit_timestamp_nsecs": %d}' % (at * 10**9),
        "default/manifest.ocdbt": b"manifest",
        "default/d/0123": bytes(range(256)) * 20,
        "default/empty": b"",
    }
    for name, content in files.items():
        path = step / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (at, at))
    return step


def recorded(step: Path) -> StepManifest:
    manifest = make_manifest(step)
    assert manifest is not None
    return manifest


@pytest.fixture
def step(tmp_path: Path) -> Path:
    return save(tmp_path / "checkpoints" / "100")


def test_what_is_unchanged_is_not_damaged(step: Path) -> None:
    manifest = recorded(step)
    (step / "default" / "later").write_bytes(b"files may come later")
    assert damage_of(step, manifest) == {}
    assert manifest.num_bytes == sum(
        path.stat().st_size for path in step.rglob("*") if path.is_file() and path.name != "later"
    )


def test_each_flipped_bit_is_found(step: Path) -> None:
    names = [name for name in recorded(step).files if (step / name).stat().st_size]
    for number in range(120):
        manifest = recorded(step)
        path = step / names[number % len(names)]
        content = bytearray(path.read_bytes())
        place = number * 7919 % (8 * len(content))
        content[place // 8] ^= 1 << place % 8
        before = path.read_bytes()
        path.write_bytes(content)
        wrong = damage_of(step, manifest)
        assert wrong == {
            names[number % len(names)]: "does not have the content that was committed"
        }, number
        assert not is_saved_anew(step, manifest)
        path.write_bytes(before)


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def become_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_link(path: Path) -> None:
    moved = path.rename(path.parents[3] / "elsewhere")
    path.symlink_to(moved)


def lose_the_folder(path: Path) -> None:
    path.rename(path.parents[3] / "gone")
    path.parent.rmdir()
    path.parent.write_text("a file in place of the folder")


def link_the_folder(path: Path) -> None:
    moved = path.parent.rename(path.parents[3] / "elsewhere")
    path.parent.symlink_to(moved)


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lose, "is missing"),
        (cut, "has 5119 bytes, not 5120"),
        (empty, "has 0 bytes, not 5120"),
        (become_fifo, "is not a file any more"),
        (become_link, "is not a file any more"),
        (lose_the_folder, "is missing"),
        (link_the_folder, "is missing"),
    ],
)
def test_other_damage_is_found(step: Path, harm: Callable[[Path], None], why: str) -> None:
    manifest = recorded(step)
    harm(step / "default" / "d" / "0123")
    assert damage_of(step, manifest) == {"default/d/0123": why}


def test_all_damaged_files_are_named(step: Path) -> None:
    manifest = recorded(step)
    for name in ("default/d/0123", "default/manifest.ocdbt"):
        path = step / name
        path.write_bytes(path.read_bytes().swapcase())
    assert damage_of(step, manifest).keys() == {"default/d/0123", "default/manifest.ocdbt"}


def test_another_save_under_the_same_name_is_no_damage(step: Path) -> None:
    manifest = recorded(step)
    assert not is_saved_anew(step, manifest)
    for path in [*step.rglob("*")][::-1]:
        path.rmdir() if path.is_dir() else path.unlink()
    save(step, at=1_700_000_100)
    (step / "default" / "d" / "0123").rename(step / "default" / "d" / "4567")
    assert is_saved_anew(step, manifest)


def test_a_step_of_which_all_files_are_emptied_is_damaged(step: Path) -> None:
    manifest = recorded(step)
    for name in manifest.files:
        (step / name).write_bytes(b"")
    assert not is_saved_anew(step, manifest)
    assert damage_of(step, manifest).keys() == manifest.files.keys() - {"default/empty"}


def test_a_commit_time_alone_makes_no_other_save(step: Path) -> None:
    """A bit of it may have flipped."""
    manifest = recorded(step)
    (step / METADATA).write_text('{"commit_timestamp_nsecs": 1900000000000000000}')
    assert not is_saved_anew(step, manifest)
    assert damage_of(step, manifest).keys() == {METADATA}


@pytest.mark.parametrize("change", ["write", "lose", "add", "lose all"])
def test_a_step_that_changes_while_it_is_read_has_no_manifest(step: Path, change: str) -> None:
    path = step / "default" / "d" / "0123"

    def changed() -> bool:
        match change:
            case "write":
                path.write_bytes(b"y" * 5120)
            case "lose":
                path.unlink(missing_ok=True)
            case "add":
                (step / "default" / "new").touch()
            case "lose all" if step.exists():
                step.rename(step.with_name("gone"))
        return False

    assert make_manifest(step, changed) is None


def test_a_step_that_is_gone_has_no_manifest(tmp_path: Path) -> None:
    assert make_manifest(tmp_path / "100") is None


def test_nobody_waits_for_what_is_stopped(step: Path) -> None:
    manifest = recorded(step)
    with pytest.raises(StoppedError):
        damage_of(step, manifest, lambda: True)
    with pytest.raises(StoppedError):
        make_manifest(step, lambda: True)


@pytest.mark.parametrize("kind", ["link", "fifo", "linked folder"])
def test_no_link_is_followed_out_of_a_step(step: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "secret").mkdir()
    match kind:
        case "link":
            (step / "default" / "x").symlink_to("/dev/zero")
        case "fifo":
            os.mkfifo(step / "default" / "x")
        case "linked folder":
            (step / "default" / "x").symlink_to(tmp_path / "secret")
    with pytest.raises(NotOursError):
        make_manifest(step)


@given(
    st.dictionaries(
        st.sampled_from([*ODD_NAMES, "plain", "d/e/f"]), st.binary(max_size=40), min_size=1
    )
)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    step = folder / "7"
    for name, content in files.items():
        (step / name).parent.mkdir(parents=True, exist_ok=True)
        (step / name).write_bytes(content)
    place = manifest_file(manifest_folder(folder, folder), "7")
    manifest = recorded(step)
    write_manifest(place, manifest, below=folder)
    assert read_manifest(place, below=folder) == manifest
    assert manifest.files.keys() == files.keys()
    assert damage_of(step, manifest) == {}


def test_a_manifest_that_is_not_as_it_was_written_is_none(step: Path, tmp_path: Path) -> None:
    place = manifest_file(manifest_folder(tmp_path, step.parent), step.name)
    write_manifest(place, recorded(step), below=tmp_path)
    data = place.read_bytes()
    for position in range(0, len(data), 13):
        flipped = bytearray(data)
        flipped[position] ^= 1
        place.write_bytes(flipped)
        assert read_manifest(place, below=tmp_path) is None, position
    for hostile in (b"", b"{}", b"[" * 10_000, b"\xff", data[:-20]):
        place.write_bytes(hostile)
        assert read_manifest(place, below=tmp_path) is None
    place.unlink()
    assert read_manifest(place, below=tmp_path) is None
    os.mkfifo(place)
    assert read_manifest(place, below=tmp_path) is None


def test_a_manifest_that_leads_out_of_the_step_is_none(step: Path, tmp_path: Path) -> None:
    manifest = recorded(step)
    record = manifest.files["default/empty"]
    place = manifest_file(manifest_folder(tmp_path, step.parent), step.name)
    for name in ("../../secret", "/etc/passwd", "default/../../x"):
        one = replace(manifest, files={name: record})
        write_manifest(place, one, below=tmp_path)
        assert read_manifest(place, below=tmp_path) is None


def test_manifests_are_written_through_no_link(step: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    folder = manifest_folder(tmp_path, step.parent)
    folder.parent.symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="is a link"):
        write_manifest(manifest_file(folder, "100"), recorded(step), below=tmp_path)
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_model_dir_that_is_moved_keeps_its_manifests(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    there = manifest_folder(old, old / "checkpoints").relative_to(old)
    assert manifest_folder(new, new / "checkpoints").relative_to(new) == there
    elsewhere = {manifest_folder(old, tmp_path / name).name for name in ("a", "b")}
    assert len(elsewhere | {there.name}) == 3


def test_nothing_else_is_left_beside_a_manifest(step: Path, tmp_path: Path) -> None:
    place = manifest_file(manifest_folder(tmp_path, step.parent), step.name)
    write_manifest(place, recorded(step), below=tmp_path)
    assert [path.name for path in place.parent.iterdir()] == ["100.json"]


def test_a_manifest_of_before_is_read_and_its_step_is_right() -> None:
    manifest = read_manifest(GOLDEN / "100.json", below=GOLDEN)
    assert manifest is not None
    assert (manifest.path, manifest.committed_at) == (
        "/runs/demo/checkpoints/100",
        1_700_000_000 * 10**9,
    )
    assert manifest.files.keys() == {METADATA, "default/a b"}
    assert damage_of(GOLDEN / "100", manifest) == {}


def test_the_format_of_a_manifest_is_that_of_before(tmp_path: Path) -> None:
    manifest = read_manifest(GOLDEN / "100.json", below=GOLDEN)
    assert manifest is not None
    write_manifest(tmp_path / "100.json", manifest, below=tmp_path)
    assert (tmp_path / "100.json").read_bytes() == (GOLDEN / "100.json").read_bytes()


@pytest.mark.parametrize("change", [{"algorithm": "blake2b"}, {"algorithm": None}, {"new": 1}])
def test_a_manifest_of_another_version_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    """Its digests may be others than ours: they must not make a good step look damaged."""
    body = json.loads((GOLDEN / "100.json").read_bytes())
    del body["sha256"]
    assert _read(tmp_path, body) is not None
    assert _read(tmp_path, body | change) is None
    del body["algorithm"]
    assert _read(tmp_path, body) is None


def _read(folder: Path, body: dict[str, object]) -> StepManifest | None:
    digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    text = json.dumps(body | {"sha256": digest}, indent=1) + "\n"
    (folder / "100.json").write_text(text)
    return read_manifest(folder / "100.json", below=folder)


def fails_with(number: int) -> Callable[[], bool]:
    """A read of which a part fails."""

    def fail() -> bool:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT])
def test_what_cannot_be_read_now_is_not_damaged(step: Path, tmp_path: Path, number: int) -> None:
    manifest = recorded(step)
    with pytest.raises(OSError, match=os.strerror(number)):
        damage_of(step, manifest, fails_with(number))
    write_manifest(
        manifest_file(manifest_folder(tmp_path, step.parent), step.name), manifest, below=tmp_path
    )
    checked = check_newest(step.parent, tmp_path, fails_with(number))
    assert (checked.newest, checked.damaged) == (100, ())
    assert checked.why_unverified == f"it cannot be read now: {os.strerror(number)}"


def test_what_the_disk_cannot_read_is_damaged(step: Path) -> None:
    wrong = damage_of(step, recorded(step), fails_with(errno.EIO))
    assert set(wrong.values()) == {"cannot be read: Input/output error"}
