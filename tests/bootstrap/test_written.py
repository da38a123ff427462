"""What a program writes is reported if it may be a checkpoint, and nothing else is."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from supervisor.bootstrap.written import WrittenPaths
from supervisor.protocol.messages import WroteMessage, decode

READS, WRITES = os.O_RDONLY | os.O_CLOEXEC, os.O_WRONLY | os.O_CREAT


class Told:
    """The hook, and the paths that it has reported."""

    def __init__(self, *, is_here: bool = True, works: bool = True, only_new: bool = False) -> None:
        self.works = works
        self.paths: list[str] = []
        self.hook = WrittenPaths(self._say, lambda: is_here, only_new=only_new)

    def _say(self, line: bytes) -> bool:
        message = decode(line.strip())
        assert isinstance(message, WroteMessage)
        if self.works:
            self.paths.append(message.path)
        return self.works


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("os.mkdir", ("/out/12.orbax-checkpoint-tmp", 511, -1)),
        ("os.rename", ("/out/x", "/out/12", -1, -1)),
        ("os.rename", ("/out/x", b"/out/12/", -1, -1)),
        ("open", ("/out/ckpt-12.pt", "wb", WRITES)),
        ("open", (Path("/out/model.epoch-3.keras"), None, WRITES)),
        ("open", ("/out/model_5_best.pkl", "wb", WRITES)),
        ("os.rename", ("/out/x", "/out/ckpt_a_step5-last.v2.pt", -1, -1)),
        ("os.mkdir", ("/out/a\nb\x1b/12", 511, -1)),
        ("os.mkdir", ("/out/a\nb", 511, -1)),
        ("open", (b"/out/\xff\xc3/ckpt_\xfe_5.pkl", "wb", WRITES)),
        ("open", ("/dev/shm/ckpt-5.pt", "wb", WRITES)),
        ("open", ("/out/\N{PILE OF POO}\U000e0001/5", "wb", WRITES)),
    ],
)
def test_what_may_be_a_checkpoint_is_reported(event: str, arguments: tuple[object, ...]) -> None:
    told = Told()
    told.hook(event, arguments)
    path = arguments[1] if event == "os.rename" else arguments[0]
    assert told.paths == [os.fsdecode(path).rstrip("/")]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("open", ("/data/shard-12", "rb", READS)),
        ("open", ("/out/log.txt", "w", WRITES)),
        ("open", ("/lib/a.cpython-311.pyc", None, WRITES)),
        ("open", (3, "w", WRITES)),
        ("open", ("a program's own event",)),
        ("os.mkdir", ()),
        ("open", ("/out/model_best.pkl", "wb", WRITES)),
        ("open", ("/out/a1b2c.pkl", "wb", WRITES)),
        ("open", ("/out/model_\u0665.pkl", "wb", WRITES)),
        ("open", ("/out/", "wb", WRITES)),
        ("open", ("/proc/1/fd/1", "w", WRITES)),
        ("open", ("/dev/pts/0", "w", WRITES)),
        ("os.mkdir", ("/sys/fs/cgroup/job_1", 511, -1)),
        ("os.mkdir", ("/sys/fs/cgroup/job", 511, -1)),
        ("import", ("x12", None, None, None, None)),
    ],
)
def test_all_else_is_not(event: str, arguments: tuple[object, ...]) -> None:
    told = Told()
    told.hook(event, arguments)
    assert told.paths == []


def test_each_kind_of_name_in_a_directory_is_reported_once_and_few_are(tmp_path: Path) -> None:
    told = Told()
    for step in range(300):
        told.hook("os.mkdir", (f"/out/{step}", 511, -1))
        told.hook("os.mkdir", (f"/out/step_{step}", 511, -1))
    assert told.paths == ["/out/0", "/out/step_0"]
    for number in range(300):
        told.hook("open", (f"/cache/{chr(256 + number)}0", "w", WRITES))
        told.hook("os.mkdir", (f"/cache{number}/0", 511, -1))
    assert len(told.paths) == 2 + 12 + 62


def test_names_that_another_number_tells_apart_are_reported_and_few_are() -> None:
    told = Told()
    for seed in range(9):
        for step in range(3):
            told.hook("open", (f"/out/seed{seed}_step{step}.npz", "wb", WRITES))
            told.hook("os.mkdir", (f"/out/last_{step}", 511, -1))
    assert told.paths == [
        "/out/seed0_step0.npz",
        "/out/last_0",
        *(f"/out/seed{seed}_step0.npz" for seed in range(1, 4)),
    ]


def test_names_with_a_word_behind_the_step_are_one_kind() -> None:
    told = Told()
    for step in range(300):
        told.hook("open", (f"/out/model_{step}_best.pkl", "wb", WRITES))
        told.hook("open", (f"/out/seed2_{step}_best.pkl", "wb", WRITES))
    assert told.paths == ["/out/model_0_best.pkl", "/out/seed2_0_best.pkl"]


def test_a_folder_that_the_program_makes_is_reported_once() -> None:
    told = Told()
    for _ in range(2):
        for path in ("/out", b"/out/models/", "/out/.cache", "/out/__pycache__"):
            told.hook("os.mkdir", (path, 511, -1))
    assert told.paths == ["/out", "/out/models"]
    for number in range(300):
        told.hook("os.mkdir", (f"/cache/{chr(256 + number)}", 511, -1))
    assert len(told.paths) == 64


def test_a_folder_that_is_there_already_is_not_reported(tmp_path: Path) -> None:
    """`os.makedirs(step, exist_ok=True)` makes nothing then: it may be another job's. But a program
    that is started directly, and makes its place for checkpoints each time, saves there."""
    told, direct = Told(only_new=True), Told()
    for name in ("step_6", "out"):
        (tmp_path / name).mkdir()
        for each in (told, direct):
            each.hook("os.mkdir", (str(tmp_path / name), 511, -1))
    assert told.paths == []
    assert direct.paths == [str(tmp_path / "out")]
    told.hook("os.mkdir", (str(tmp_path / "step_7"), 511, -1))
    assert told.paths == [str(tmp_path / "step_7")]


def test_another_name_for_a_step_is_not_reported(tmp_path: Path) -> None:
    told, copy = Told(), tmp_path / "step_0005"
    for name in ("step_5", "step_2"):
        (tmp_path / name).mkdir()
    told.hook("os.mkdir", (str(copy), 511, -1))
    told.hook("os.mkdir", (str(copy / "eval"), 511, -1))
    told.hook("open", (str(copy / "array_1"), "wb", WRITES))
    told.hook("os.rename", (str(tmp_path / "step_2"), str(tmp_path / "old_2"), -1, -1))
    assert told.paths == []


def test_a_save_that_is_complete_is_reported_under_its_new_name(tmp_path: Path) -> None:
    told = Told()
    told.hook("os.rename", (str(tmp_path / "step_1.tmp"), str(tmp_path / "step_1"), -1, -1))
    told.hook("os.mkdir", (str(tmp_path / "tmp-ckpt-2"), 511, -1))
    told.hook("os.rename", (str(tmp_path / "tmp-ckpt-2"), str(tmp_path / "ckpt-2"), -1, -1))
    assert told.paths == [str(tmp_path / name) for name in ("step_1", "tmp-ckpt-2", "ckpt-2")]


@pytest.mark.parametrize("only_new", [False, True])
def test_a_file_that_is_there_already_is_reported_only_where_it_is_known_who_trains(
    tmp_path: Path, *, only_new: bool
) -> None:
    told, there = Told(only_new=only_new), tmp_path / "ckpt_5.pkl"
    there.touch()
    told.hook("open", (str(there), "wb", WRITES))
    assert told.paths == ([] if only_new else [str(there)])


def test_what_a_native_writer_gets_is_reported(tmp_path: Path) -> None:
    """Under each name that the function has, and whatever it raises."""
    told, package, inner = Told(), ModuleType("writers"), ModuleType("writers.native")

    def save(what: object, f: object) -> object:
        if what is None:
            raise TypeError(f)
        return what, f

    package.save = inner.save = save  # type: ignore[attr-defined]
    sys.modules.update({"writers": package, "writers.native": inner})
    try:
        told.hook.watch_writer(inner, "save", 1, "f", nullcontext())
        path = tmp_path / "ckpt_1.pt"
        assert package.save("x", path) == inner.save("x", f=path) == ("x", path)
        assert inner.save("x", sys.stdout) == ("x", sys.stdout)
        assert told.paths == [str(path)]
        with pytest.raises(TypeError):
            inner.save(None, str(tmp_path / "out" / "2.pt"))
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            inner.save("x")
        assert told.paths[1:] == [str(tmp_path / "out" / "2.pt")]
    finally:
        del sys.modules["writers"], sys.modules["writers.native"]


def test_a_report_that_did_not_get_through_is_tried_again() -> None:
    told = Told(works=False)
    told.hook("os.mkdir", ('/a"b\\c/1', 511, -1))
    told.works = True
    told.hook("os.mkdir", ('/a"b\\c/2', 511, -1))
    assert told.paths == ['/a"b\\c/2']


def test_a_child_reports_nothing() -> None:
    told = Told(is_here=False)
    told.hook("os.mkdir", ("/out/1", 511, -1))
    assert told.paths == []


def test_a_relative_path_is_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = Told()
    told.hook("os.mkdir", ("7", 511, -1))
    assert told.paths == [str(tmp_path / "7")]
