"""What ends a wait for changes in a folder: real files, and the kernel's own events."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

from supervisor.adapters.stores.checkpoint_watcher import (
    CheckpointPoller,
    CheckpointWatcher,
    Pace,
    newest_committed,
)
from supervisor.host.folder_changes import FolderChanges

LONG = 30.0
"""Seconds: a wait of that length must be ended by something."""


@pytest.fixture
def changes(tmp_path: Path) -> Iterator[FolderChanges]:
    """Changes of the entries of `tmp_path` whose name begins with `step`."""
    watched = FolderChanges(lambda name: name.startswith("step"))
    watched.watch(tmp_path)
    yield watched
    watched.close()


def close_a_file(folder: Path) -> None:
    (folder / "step_1").write_text("")


def rename(folder: Path) -> None:
    os.mknod(folder / "unfinished")
    (folder / "unfinished").rename(folder / "step_1")


def make_a_folder(folder: Path) -> None:
    (folder / "step_1").mkdir()


@pytest.mark.parametrize("change", [close_a_file, rename, make_a_folder])
def test_a_change_ends_the_wait(
    changes: FolderChanges, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    timer = threading.Timer(0.1, change, (tmp_path,))
    timer.start()
    assert changes.wait(LONG)
    timer.join()


def test_nothing_else_does(changes: FolderChanges, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("")
    assert not changes.wait(0.1)


def test_a_call_ends_the_wait_whether_before_or_in_it(changes: FolderChanges) -> None:
    changes.wake()
    assert changes.wait(LONG)
    assert not changes.wait(0.0)
    timer = threading.Timer(0.1, changes.wake)
    timer.start()
    assert changes.wait(LONG)
    timer.join()


def test_a_folder_that_was_made_again_is_watched_again(
    changes: FolderChanges, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    changes.watch(folder)  # it is not there yet
    for _ in range(2):
        folder.mkdir()
        changes.watch(folder)
        close_a_file(folder)
        assert changes.wait(LONG)
        (folder / "step_1").unlink()
        folder.rmdir()


def test_a_program_that_writes_all_the_time_ends_few_waits(
    changes: FolderChanges, tmp_path: Path
) -> None:
    for _ in range(10):
        close_a_file(tmp_path)
        assert changes.wait(LONG)
    close_a_file(tmp_path)
    assert not changes.wait(0.05)
    assert changes.wait(LONG)  # it is not lost


def test_after_the_end_a_call_does_nothing(tmp_path: Path) -> None:
    changes = FolderChanges(lambda name: True)
    changes.close()
    changes.wake()
    changes.watch(tmp_path)


def test_a_step_is_seen_when_it_is_closed_however_long_the_pause_is(tmp_path: Path) -> None:
    commits: Queue[int] = Queue()
    poller = CheckpointPoller(
        tmp_path,
        lambda: newest_committed(tmp_path, proven=lambda path: path.stat().st_size > 0),
        commits.put,
        lambda notice: None,
        Pace(3600.0, 3600.0),
    )
    watcher = CheckpointWatcher(poller, tmp_path)
    for step in (1, 2, 3):
        (tmp_path / f"ckpt-{step}.pkl").write_bytes(pickle.dumps(step))
        assert commits.get(timeout=LONG) == step
    watcher.stop()
