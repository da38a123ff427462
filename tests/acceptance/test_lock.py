"""The check of libtpu's lock file leaves the file of anybody else as it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.acceptance import tpu
from deploy.acceptance.bench import Bench, CheckSkippedError, Child

DEVICE = """: >> "$LOCK"; chmod 600 "$LOCK"
echo '{"at": "step"}'; echo '{"at": "holding"}'; exec sleep 1000"""


class Locking(Bench):
    """A bench whose processes leave a lock file behind, and refuse another user."""

    def device(self, do: str, env: object = None, **more: object) -> Child:
        return self.start(["sh", "-c", DEVICE], {"LOCK": str(tpu._LOCK)})

    def start(self, argv: Any, env: Any = None, user: int | None = None, **more: Any) -> Child:
        refused = ["sh", "-c", "echo the TPU is in use; exit 1"]
        return super().start(argv if user is None else refused, env)


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tpu, "_LOCK", tmp_path / "libtpu_lockfile")
    return tmp_path / "libtpu_lockfile"


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Locking("tpu", 1)
    yield made
    made.close()


def run(bench: Bench) -> None:
    bench.begin(60.0)
    if os.geteuid() == 0:
        tpu.lock_file(bench)
    else:
        with pytest.raises(CheckSkippedError, match="root alone"):
            tpu.lock_file(bench)


def link(lock: Path) -> None:
    (lock.parent / "target").touch()
    lock.symlink_to(lock.parent / "target")


def of_another(lock: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("root alone can make the file of another user")
    lock.touch()
    os.chown(lock, 1000, 1000)


def changes(found: os.stat_result) -> tuple[int, int, int]:
    """Which file it is, and its last changes. That somebody looked where a link points, as `stat`
    does, changes the time of the last access."""
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


@pytest.mark.parametrize("made", [Path.mkdir, link, of_another])
def test_what_is_not_ours_is_not_touched(
    bench: Bench, lock: Path, made: Callable[[Path], None]
) -> None:
    made(lock)
    before = changes(lock.lstat()), changes(lock.stat())
    bench.begin(60.0)
    with pytest.raises(CheckSkippedError, match="it is left as it is"):
        tpu.lock_file(bench)
    assert (changes(lock.lstat()), changes(lock.stat())) == before


def test_only_what_the_check_made_is_removed(bench: Bench, lock: Path) -> None:
    run(bench)
    assert not lock.exists()
    lock.touch(mode=0o600)
    run(bench)
    assert lock.exists()
