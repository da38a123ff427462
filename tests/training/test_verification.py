"""A step is read beside its verification, and a reader that a damaged one kills is killed once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.protocol.messages import NoticeCode
from tests.training.notices import Notices
from trainer.manifest import READING_MARK, DamagedError, Manifest, write_manifest
from trainer.verification import verified_read

OURS = f"{READING_MARK}0"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "12"
    path.mkdir()
    (path / "data").write_bytes(os.urandom(100_000))
    return path


@pytest.fixture
def manifest(step: Path) -> Manifest:
    return write_manifest(step, {}, {})


def flip(step: Path) -> None:
    content = bytearray((step / "data").read_bytes())
    content[50_000] ^= 1
    (step / "data").write_bytes(content)


def first_byte(path: Path) -> int:
    assert (path / OURS).exists()
    return (path / "data").read_bytes()[0]


def test_a_mark_stands_as_long_as_the_read(step: Path, manifest: Manifest) -> None:
    said = Notices()
    expected = (step / "data").read_bytes()[0]
    assert verified_read(step, manifest, first_byte, said) == expected
    assert not (step / OURS).exists()
    assert said == []
    manifest.verify(step)


def raise_value_error(path: Path) -> int:
    raise ValueError("what is this")


def test_nothing_that_was_read_of_a_damaged_step_is_used(step: Path, manifest: Manifest) -> None:
    flip(step)
    with pytest.raises(DamagedError, match="data does not have the content"):
        verified_read(step, manifest, first_byte, print)
    (step / OURS).unlink()
    with pytest.raises(DamagedError) as error:
        verified_read(step, manifest, raise_value_error, print)
    assert isinstance(error.value.__context__, ValueError)


def test_an_error_of_the_reader_is_its_own_where_the_files_are_sound(
    step: Path, manifest: Manifest
) -> None:
    for marks in (0, 1):
        assert (step / OURS).exists() == bool(marks)
        with pytest.raises(ValueError, match="what is this") as error:
            verified_read(step, manifest, raise_value_error, print)
        assert error.value.__context__ is None, "another one would be taken for the root cause"


@pytest.mark.parametrize("damaged", [True, False])
def test_after_a_reader_that_was_killed_it_is_verified_first(
    step: Path, manifest: Manifest, damaged: bool
) -> None:
    if damaged:
        flip(step)
    pid = os.fork()
    if pid == 0:
        verified_read(step, manifest, lambda path: os._exit(3), print)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3

    said = Notices()
    read: list[Path] = []
    if damaged:
        with pytest.raises(DamagedError):
            verified_read(step, manifest, read.append, said)
        assert read == []
    else:
        verified_read(step, manifest, read.append, said)
        assert read == [step]
        assert not (step / OURS).exists()
    assert said.codes == [NoticeCode.CHECKPOINT_READ_BROKEN_OFF]


def test_a_size_is_looked_at_before_anything_is_read(step: Path, manifest: Manifest) -> None:
    (step / "data").write_bytes(b"short")
    read: list[Path] = []
    with pytest.raises(DamagedError, match="has 5 bytes, not 100000"):
        verified_read(step, manifest, read.append, print)
    assert read == []
    assert not (step / OURS).exists()
