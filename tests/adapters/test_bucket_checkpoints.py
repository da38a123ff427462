"""Committed checkpoints in a bucket: which they are, what asking costs, and how often is asked."""

from __future__ import annotations

import json
from queue import Queue

import pytest

from supervisor.adapters.stores.bucket_checkpoints import newest_committed, unmarked_copies
from supervisor.adapters.stores.checkpoint_watcher import (
    BUCKET,
    DISK,
    CheckpointPoller,
    CheckpointWatcher,
    Pace,
)
from supervisor.config.own_layout import OwnLayout
from supervisor.ports import UnavailableError
from supervisor.protocol.location import Uri
from tests.memory_objects import MemoryObjects
from tests.running import PATIENCE

COMMITTED = json.dumps({"commit_timestamp_nsecs": 17}).encode()
SAVING = json.dumps({"commit_timestamp_nsecs": None}).encode()


def holding(*paths: str) -> MemoryObjects:
    objects = MemoryObjects()
    for path in paths:
        objects.write(path, COMMITTED)
    objects.calls.clear()
    return objects


@pytest.mark.parametrize(
    ("paths", "newest"),
    [
        ((), None),
        (("9/commit_success.txt",), 9),
        (("9/commit_success.txt", "0010/commit_success.txt", "run_11/params/d/1"), 10),
        (("9/_CHECKPOINT_METADATA", "9/params/commit_success.txt"), None),
        (("9.orbax-checkpoint-tmp/commit_success.txt", "final/commit_success.txt"), None),
        (("9", "supervise_saving.json", "commit_success.txt"), None),
        (("step_00000009/index", "step_00000010/gda/x"), 9),
        (("step-9/metadata.json", "step-10/model/x"), 9),
        (("9/index", "9/metadata.json", "step_9/metadata.json", "step-9/index"), None),
    ],
)
def test_what_is_committed(paths: tuple[str, ...], newest: int | None) -> None:
    assert newest_committed(holding(*paths)) == newest


def test_only_an_own_layout_counts_where_there_is_one() -> None:
    objects = holding("run7/DONE", "run8/commit_success.txt", "9/commit_success.txt", "9/DONE")
    assert newest_committed(objects, OwnLayout(r"run(\d+)", "DONE")) == 7


def test_a_look_costs_two_requests_and_one_more_for_each_save_under_way() -> None:
    many = [f"{step}/params/d/{number}" for step in (10, 20, 30) for number in range(1000)]
    objects = holding(*many, *(f"{step}/commit_success.txt" for step in (10, 20, 30)))
    assert newest_committed(objects) == 30
    assert objects.calls == {"list": 1, "exists": 1}
    objects.write("40/params/d/0", b"")
    objects.calls.clear()
    assert newest_committed(objects) == 30
    assert objects.calls == {"list": 1, "exists": 2}


def test_a_step_that_vanishes_or_loses_its_marker_is_not_committed_any_more() -> None:
    objects = holding("10/commit_success.txt", "20/commit_success.txt", "20/params/d/0")
    assert newest_committed(objects) == 20
    objects.delete("20/commit_success.txt")
    assert newest_committed(objects) == 10
    objects.delete("10/commit_success.txt")
    assert newest_committed(objects) is None


def test_copies_without_a_marker_are_known_and_saves_under_way_are_none() -> None:
    objects = holding(
        "10/_CHECKPOINT_METADATA",  # below the newest committed one: nobody would want it
        "20/commit_success.txt",
        "30/_CHECKPOINT_METADATA",
        "35/params/d/0",
        "run_40/_CHECKPOINT_METADATA",
    )
    objects.write("50/_CHECKPOINT_METADATA", SAVING)
    assert unmarked_copies(objects) == ("run_40", "30")
    assert newest_committed(objects) == 20


def test_pauses_grow_while_nothing_changes() -> None:
    pause, pauses = BUCKET.least, []
    for changed in (False, False, False, False, True, False):
        pause = BUCKET.after(pause, changed=changed)
        pauses.append(pause)
    assert pauses == [10, 20, 30, 30, 5, 10]
    assert DISK.after(DISK.least, changed=False) == 2 * DISK.least


def test_the_watcher_looks_at_once_when_told_and_tells_trouble_once() -> None:
    objects = holding("10/commit_success.txt")
    commits: Queue[int] = Queue()
    errors: Queue[str] = Queue()
    place = Uri("gs", "b", "checkpoints")

    def look() -> int | None:
        return newest_committed(objects)

    watcher = CheckpointWatcher(
        CheckpointPoller(place, look, commits.put, errors.put, Pace(3600, 3600))
    )
    assert commits.get(timeout=PATIENCE) == 10
    objects.fault = lambda operation, path: UnavailableError("503 for a minute")
    watcher.poll_now()
    told = "gs://b/checkpoints cannot be watched: 503 for a minute"
    assert errors.get(timeout=PATIENCE) == told
    objects.fault = lambda operation, path: None
    objects.write("20/commit_success.txt", b"")
    watcher.poll_now()
    assert commits.get(timeout=PATIENCE) == 20
    watcher.stop()
