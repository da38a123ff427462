"""Which checkpoints are committed: by the layouts of several writers, and by a real Orbax."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from supervisor.adapters.stores.bucket_checkpoints import newest_committed, newest_saved
from supervisor.config.own_layout import OwnLayout
from supervisor.protocol.checkpoint_layouts import LAYOUTS, Layout, saved_step
from supervisor.protocol.committed import (
    committed_steps,
    is_committed,
    step_entries,
    step_of,
    unmarked_copies,
    unmarked_warning,
    unreadable_markers,
)
from tests.memory_objects import MemoryObjects

ORBAX = {"_CHECKPOINT_METADATA": json.dumps({"commit_timestamp_nsecs": 17_000})}
SAVING = {"_CHECKPOINT_METADATA": json.dumps({"commit_timestamp_nsecs": None})}
MARKER = {"commit_success.txt": "x"}


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("0", 0),
        ("9", 9),
        ("000120", 120),
        ("step_120", 120),
        ("step_00000120", 120),
        ("step-120", 120),
        ("my_run_120", 120),
        ("ckpt-v1.2_7", 7),
        ("9.orbax-checkpoint-tmp", None),
        ("9.orbax-checkpoint-tmp-1700000000", None),
        ("step_9.orbax-checkpoint-tmp-3", None),
        ("step9", None),
        ("9_step", None),
        ("-9", None),
        ("_9", None),
        ("9.5", None),
        ("1" * 19, None),
        ("", None),
        ("metrics", None),
        ("step_", None),
        ("9 ", None),
        ("9\n", None),
    ],
)
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


@pytest.mark.parametrize(
    ("name", "files", "posix", "object_store"),
    [
        # Orbax: the marker everywhere; the commit timestamp where the final name means something.
        ("9", {**ORBAX, **MARKER}, True, True),
        ("9", MARKER, True, True),
        ("9", ORBAX, True, False),
        ("9", SAVING, False, False),
        ("9", {**SAVING, **MARKER}, True, True),
        ("9", {"_CHECKPOINT_METADATA": "{}"}, False, False),
        ("9", {"_CHECKPOINT_METADATA": '{"commit_timestamp_nsecs": 0}'}, False, False),
        ("9", {"_CHECKPOINT_METADATA": '{"commit_timest'}, False, False),
        ("9", {"_CHECKPOINT_METADATA": ""}, False, False),
        ("9", {"_CHECKPOINT_METADATA": "[1]"}, False, False),
        ("9", {"_CHECKPOINT_METADATA": "[" * 100_000}, False, False),
        ("9", {"_CHECKPOINT_METADATA": "\udcff"}, False, False),
        ("9", {}, False, False),
        ("9", {"state": "", "metrics": ""}, False, False),
        ("000009", ORBAX, True, False),
        ("ckpt_9", {**ORBAX, **MARKER}, True, True),
        ("9.orbax-checkpoint-tmp", {**ORBAX, **MARKER}, False, False),
        ("9.orbax-checkpoint-tmp-17", {**ORBAX, **MARKER}, False, False),
        ("ckpt_9.orbax-checkpoint-tmp-0", MARKER, False, False),
        ("final", {**ORBAX, **MARKER}, False, False),
        # AXLearn writes `index` last, under step_*; elsewhere that name says nothing.
        ("step_00000009", {"index": "[]"}, True, True),
        ("9", {"index": "[]"}, False, False),
        ("step_00000009", {"gda": ""}, False, False),
        # Levanter writes metadata.json last, under step-*.
        ("step-9", {"metadata.json": '{"step": 9}'}, True, True),
        ("step-9", {"metadata.json": '{"st'}, False, False),
        ("step-9", {}, False, False),
        ("9", {"metadata.json": '{"step": 9}'}, False, False),
        # PyTorch's distributed checkpoints rename .metadata to its name last.
        ("step-9", {".metadata": "x", "__0_0.distcp": "x"}, True, True),
        ("9", {".metadata.tmp": "x", "__0_0.distcp": "x"}, False, False),
        # Orbax's guides name a step so.
        ("ckpt9", ORBAX, True, False),
        ("ckpt0", {**ORBAX, **MARKER}, True, True),
        # Without a proof, nothing else is committed.
        ("checkpoint-9", {"trainer_state.json": "{\n}\n", "model.safetensors": ""}, False, False),
    ],
)
def test_what_is_committed(
    name: str, files: dict[str, str], posix: bool, object_store: bool, tmp_path: Path
) -> None:
    directory = tmp_path / name
    directory.mkdir()
    for file, content in files.items():
        (directory / file).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert is_committed(directory) is posix
    assert is_committed(directory, posix=False) is object_store
    assert bool(list(committed_steps(tmp_path))) is posix


MARKED = [row for row in LAYOUTS if row.marker is not None]


@pytest.mark.parametrize("row", MARKED, ids=lambda row: row.example)
def test_the_marker_of_each_row_of_the_table_commits_its_example(
    row: Layout, tmp_path: Path
) -> None:
    marker = row.marker
    assert marker is not None
    assert marker.file in row.commit
    step = tmp_path / row.example.strip("/")
    step.mkdir()
    assert not is_committed(step)
    (step / marker.file).touch()
    assert is_committed(step) is not marker.is_json, "an empty file is no whole JSON object"
    (step / marker.file).write_text("{}")
    assert is_committed(step)
    assert is_committed(step, posix=False), "a mount of a bucket"
    in_bucket = MemoryObjects()
    in_bucket.write(f"{step.name}/{marker.file}", b"{}")
    assert (newest_committed(in_bucket) is None) is marker.is_renamed


def test_the_table_has_the_markers_of_four_programs() -> None:
    """Programs rely on each: one that is lost has them begin from scratch."""
    assert {(row.marker.owner, row.marker.file) for row in MARKED if row.marker} == {
        ("Orbax", "commit_success.txt"),
        ("AXLearn", "index"),
        ("Levanter", "metadata.json"),
        ("PyTorch", ".metadata"),
    }


def test_a_whole_checkpoint_in_a_folder_of_the_step_commits_it(tmp_path: Path) -> None:
    checkpoint(tmp_path, "100/state", ORBAX)
    checkpoint(tmp_path, "200/state", SAVING)
    checkpoint(tmp_path, "300/state.orbax-checkpoint-tmp", ORBAX)
    checkpoint(tmp_path, "400/state", ORBAX)
    checkpoint(tmp_path, "400/metrics.orbax-checkpoint-tmp", {})
    checkpoint(tmp_path, "500/other", ORBAX)
    assert [step for step, _ in committed_steps(tmp_path)] == [100]
    assert list(committed_steps(tmp_path, posix=False)) == []


def test_only_an_own_layout_counts_where_there_is_one(tmp_path: Path) -> None:
    own = OwnLayout(r"run(\d+)", "DONE")
    checkpoint(tmp_path, "run7", {"DONE": ""})
    checkpoint(tmp_path, "run8", {"commit_success.txt": ""})
    checkpoint(tmp_path, "run9x", {"DONE": ""})
    checkpoint(tmp_path, "100", ORBAX)
    assert list(committed_steps(tmp_path, own=own)) == [(7, tmp_path / "run7")]
    assert list(committed_steps(tmp_path, own=own, posix=False)) == [(7, tmp_path / "run7")]
    proven = OwnLayout(r"(\d+|x+)\.blob", None)
    for name in ("7.blob", "8.blob", "xx.blob", "1" * 19 + ".blob"):
        (tmp_path / name).touch()
    found = committed_steps(tmp_path, own=proven, proven=lambda path: path.name != "8.blob")
    assert [step for step, _ in found] == [7]
    assert list(committed_steps(tmp_path, own=proven)) == []


def test_a_pattern_that_takes_too_long_is_an_error_and_not_empty(tmp_path: Path) -> None:
    (tmp_path / ("a" * 60 + "b")).touch()
    with pytest.raises(OSError, match="takes too long"):
        list(committed_steps(tmp_path, own=OwnLayout(r"((?:a|a)+)", None)))


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "9").write_text("x")
    assert not is_committed(tmp_path / "9")


def checkpoint(root: Path, name: str, files: dict[str, str]) -> None:
    (root / name).mkdir(parents=True)
    for file, content in files.items():
        (root / name / file).write_text(content)


def test_newest_first_by_number(tmp_path: Path) -> None:
    for name in ("9", "0010", "100", "run_11"):
        checkpoint(tmp_path, name, ORBAX)
    checkpoint(tmp_path, "200.orbax-checkpoint-tmp", ORBAX)
    checkpoint(tmp_path, "150", {})
    assert list(committed_steps(tmp_path)) == [
        (100, tmp_path / "100"),
        (11, tmp_path / "run_11"),
        (10, tmp_path / "0010"),
        (9, tmp_path / "9"),
    ]


@pytest.mark.parametrize(
    "names",
    [
        # The steps begin again in each epoch.
        ["epoch_10_step_5.pkl", "epoch_3_step_90.pkl", "epoch_3_step_5.pkl", "epoch_2_step_90.pkl"],
        ["ep3-step100.npz", "ep2-step200.npz", "ep2-step100.npz"],
        ["round_3_step_1/", "round_2_step_9/"],
        ["round_2_epoch_0_step_1.pkl", "round_1_epoch_3_step_9.pkl", "round_1_epoch_2_step_10.pkl"],
        ["best_epoch3_step5.pt", "ckpt_epoch2_step9.pt"],
        # They go on.
        ["epoch=2-step=300.ckpt", "epoch=1-step=200.ckpt", "epoch=0-step=100.ckpt"],
        ["ckpt_step_300.pt", "best_epoch3_step250.pt", "ckpt_step_200.pt"],
        # The number of an epoch behind the step counts within it.
        ["iter_6_epoch_0.pkl", "iter_5_epoch_3.pkl", "iter_5_epoch_2.pkl"],
        ["epoch_12.pkl", "epoch_5.pkl"],
        ["pretrained_model_50.pkl", "epoch_3_step_5.pkl", "epoch_2_step_90.pkl"],
    ],
)
def test_the_epoch_before_a_step_decides_first(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    assert [path.name for _, path in step_entries(tmp_path)] == [each.strip("/") for each in names]
    in_bucket = MemoryObjects()
    for name in names:
        in_bucket.write(f"{name.strip('/')}/commit_success.txt", b"")
    newest = newest_saved(in_bucket)
    assert newest is not None
    assert newest == saved_step(newest.number, names[0].strip("/"))


def test_the_epoch_counts_in_the_names_of_an_own_layout(tmp_path: Path) -> None:
    own = OwnLayout(r"epoch_\d+_batch_(\d+)\.blob", None)
    for name in ("epoch_3_batch_3.blob", "epoch_2_batch_90.blob", "epoch_2_batch_9.blob"):
        (tmp_path / name).touch()
    assert [step for step, _ in step_entries(tmp_path, own)] == [3, 90, 9]


@pytest.mark.parametrize("name", ["step_#.npz", "step_#", "#", "ckpt#", "model-1#", "model_#"])
@pytest.mark.parametrize(
    "digit",
    ["\u0665", "\uff15", "\xb2"],  # Arabic, wide, raised
)
def test_only_ascii_digits_are_a_step(name: str, digit: str) -> None:
    assert step_of(name.replace("#", "5")) in (5, 15)
    assert step_of(name.replace("#", digit)) is None


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_where_there_is_nothing(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    if kind == "file":
        root.write_text("x")
    elif kind == "empty":
        root.mkdir()
    assert list(committed_steps(root)) == []


def test_what_cannot_be_read_is_an_error_and_not_empty(tmp_path: Path) -> None:
    root = tmp_path / "loop"
    root.symlink_to(root)
    with pytest.raises(OSError, match="symbolic links"):
        list(committed_steps(root))


REAL = """
import os, signal, sys
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint._src.path import atomicity

manager = ocp.CheckpointManager(sys.argv[1])
manager.save(3, args=ocp.args.StandardSave({"w": np.arange(4.0)}))
manager.wait_until_finished()

async def die(self, *args, **kwargs):  # all is written, only the commit is missing
    os.kill(os.getpid(), signal.SIGKILL)

for kind in vars(atomicity).values():
    if isinstance(kind, type) and "finalize" in vars(kind):
        kind.finalize = die
manager.save(5, args=ocp.args.StandardSave({"w": np.arange(4.0)}))
manager.wait_until_finished()
"""


def test_a_real_checkpoint_is_committed_and_one_killed_before_its_commit_is_not(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REAL), str(tmp_path)],
        env={"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == -9, done.stderr.decode()[-2000:]
    assert any(path.name.startswith("5") for path in tmp_path.iterdir())
    assert [step for step, _ in committed_steps(tmp_path)] == [3]
    assert [step for step, _ in committed_steps(tmp_path, posix=False)] == [3]


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("gs://b/c/9", "echo copied | gcloud storage cp - gs://b/c/9/commit_success.txt"),
        ("s3://b/c/9", "echo copied | aws s3 cp - s3://b/c/9/commit_success.txt"),
        ("/mnt/b/c/9", "touch /mnt/b/c/9/commit_success.txt"),
    ],
)
def test_a_copy_without_its_marker_is_explained_in_one_line(place: str, command: str) -> None:
    told = unmarked_warning(place)
    assert told.startswith(f"{place} looks like a checkpoint that was saved on a disk")
    assert f"run `{command}`" in told
    assert "\n" not in told


def test_copies_without_a_marker_are_known_in_a_mount_of_a_bucket(tmp_path: Path) -> None:
    for name, files in [
        ("10", ORBAX),
        ("20", MARKER),
        ("30", ORBAX),
        ("35", SAVING),
        ("run_40", ORBAX),
        ("50", {}),
    ]:
        checkpoint(tmp_path, name, files)
    assert list(unmarked_copies(tmp_path)) == ["run_40", "30"]
    assert list(unmarked_copies(tmp_path / "nothing")) == []


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (fifo, "_CHECKPOINT_METADATA"),
        (zeros, "_CHECKPOINT_METADATA"),
        (terabyte, "_CHECKPOINT_METADATA"),
        (fifo, "metadata.json"),
        (zeros, "metadata.json"),
        (fifo, "commit_success.txt"),
        (zeros, "commit_success.txt"),
        (fifo, ".metadata"),
        (zeros, ".metadata"),
    ],
)
def test_what_is_no_file_commits_nothing_and_is_told(
    tmp_path: Path, plant: Callable[[Path], None], name: str
) -> None:
    (tmp_path / "step-7").mkdir()
    plant(tmp_path / "step-7" / name)
    assert not is_committed(tmp_path / "step-7")
    assert list(committed_steps(tmp_path)) == []
    (told,) = unreadable_markers(tmp_path)
    assert told.startswith(f"{tmp_path / 'step-7' / name} ")
    assert told.endswith("the checkpoint is not used")


def test_a_step_that_is_a_link_to_itself_is_named_and_no_file_in_it(tmp_path: Path) -> None:
    place = tmp_path / "ckpt-901.npz"
    place.symlink_to(place.name)
    assert list(unreadable_markers(tmp_path)) == [
        f"{place} is a link that leads to no file: remove it"
    ]


def test_a_sound_checkpoint_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    for name, content in {**ORBAX, **MARKER}.items():
        (tmp_path / "real" / name).write_text(content)
    (tmp_path / "7").symlink_to("real")  # a person's own link to a step elsewhere
    assert is_committed(tmp_path / "7")
    assert list(unreadable_markers(tmp_path)) == []


@contextmanager
def system_calls() -> Iterator[Counter[str]]:
    """Counts the calls of the functions in `os` that ask the system."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__module__", None) == "posix":
            calls[called.__name__] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def test_thousands_of_empty_folders_are_looked_at_once_each(tmp_path: Path) -> None:
    for number in range(1000, 9000):
        (tmp_path / str(number)).mkdir()
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "commit_success.txt").touch()
    with system_calls() as calls:
        assert list(committed_steps(tmp_path)) == [(7, tmp_path / "7")]
    assert 8000 <= calls.total() < 8000 + 10
