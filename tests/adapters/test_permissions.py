"""Whoever may change the model_dir of a job that root runs is told by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from supervisor.adapters.stores.permissions import find_exposures

LOCK = ".lock"
NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: needs root")


@pytest.fixture
def model_dir() -> Iterator[Path]:
    """Below /tmp, which everybody may write, but whose bit keeps them from renaming."""
    with TemporaryDirectory() as name:
        (Path(name) / "above" / "run").mkdir(parents=True)
        yield Path(name).resolve() / "above" / "run"


def test_what_only_root_can_change_is_not_told(model_dir: Path) -> None:
    (model_dir / LOCK).touch(0o600)
    assert find_exposures(model_dir, LOCK, user=0) == []


@pytest.mark.parametrize(
    ("mode", "group", "told"),
    [
        (0o777, 0, "{} can be written by everyone"),
        (0o1777, 0, "{} can be written by everyone"),
        (0o775, NOBODY, f"{{}} can be written by group {NOBODY}"),
    ],
)
def test_a_directory_that_others_may_write(
    model_dir: Path, mode: int, group: int, told: str
) -> None:
    os.chown(model_dir, 0, group)
    model_dir.chmod(mode)
    assert find_exposures(model_dir, LOCK, user=0) == [told.format(model_dir)]
    assert find_exposures(model_dir, LOCK, user=NOBODY) == [], "only root is told"


def test_a_directory_of_somebody_else(model_dir: Path) -> None:
    os.chown(model_dir, NOBODY, 0)
    assert find_exposures(model_dir, LOCK, user=0) == [f"{model_dir} belongs to uid {NOBODY}"]


def test_a_directory_above_in_which_it_can_be_replaced(model_dir: Path) -> None:
    link = model_dir.parent.parent / "link"
    link.symlink_to(model_dir)
    model_dir.parent.chmod(0o777)
    for path in (model_dir, link):
        told = find_exposures(path, LOCK, user=0)
        assert told == [f"{model_dir.parent} can be written by everyone"]
    model_dir.parent.chmod(0o1777)
    assert find_exposures(model_dir, LOCK, user=0) == []


@pytest.mark.parametrize("user", [0, 1])
def test_a_lock_that_others_may_hold(model_dir: Path, user: int) -> None:
    (model_dir / LOCK).touch()
    (model_dir / LOCK).chmod(0o644)
    os.chown(model_dir / LOCK, NOBODY, 0)
    path = model_dir / LOCK
    told = [f"{path} belongs to uid {NOBODY}"]
    told += [f"{path} can be opened by others (mode 644, not 600)"]
    assert find_exposures(model_dir, LOCK, user=user) == told


def test_what_cannot_be_looked_at_is_told(model_dir: Path) -> None:
    name = "x" * 300  # too long for any file system
    told = "cannot be looked at (File name too long)"
    assert find_exposures(model_dir, name, user=0) == [f"{model_dir / name} {told}"]
    assert f"{model_dir / name} {told}" in find_exposures(model_dir / name, LOCK, user=0)
