"""Files of a model_dir: replaced whole or not at all, appended to, and owned by one supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from supervisor.adapters.stores.storage import LocalStorage, make_durably

ROOT = Path(__file__).parents[2]
NOW = datetime(2025, 3, 4, 5, 6, 7, tzinfo=UTC)


def python(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A child that runs `program`."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# --- storage --------------------------------------------------------------------------------------


def test_replaced_and_read_back(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.replace("a.json", b"one")
    storage.replace("a.json", b"two")
    assert storage.read("a.json", 1 << 20) == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert storage.local_path("a.json") == tmp_path / "a.json"


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    contents = {bytes([letter]) * 200_000 for letter in b"ab"}
    storage.replace("a", min(contents))
    seen: set[bytes] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(storage.read("a", 1 << 20))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        for content in contents:
            storage.replace("a", content)
    done.set()
    reader.join()
    assert seen <= contents


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.replace("a", b"before")
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from supervisor.adapters.stores.storage import LocalStorage\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: LocalStorage(Path(sys.argv[1])).replace('a', b'x' * 5000)\n"
        "except OSError as error: print(error.strerror)\n"
    )
    said, _ = python(program, str(tmp_path)).communicate(timeout=30)
    assert said == "File too large\n"
    assert storage.read("a", 1 << 20) == b"before"


@pytest.mark.parametrize("durable", [True, False])
def test_appended_in_order(durable: bool, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.append("a", b"one\n", durable=durable)
    storage.append("a", b"", durable=durable)
    storage.append("a", b"two\n" * 1000, durable=durable)
    assert storage.read("a", 1 << 20) == b"one\n" + b"two\n" * 1000


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalStorage(tmp_path).read("nothing", 1)
    with pytest.raises(FileNotFoundError):
        LocalStorage(tmp_path).append("nowhere/a", b"x")


def test_a_directory_is_made_once(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    assert storage.make_directory("a/b/c") is True
    assert storage.make_directory("a/b/c") is False
    assert storage.make_directory("a/b") is False
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError):
        storage.make_directory("file")


@pytest.mark.parametrize("path", ["", "/x", "../outside/x", "a/../../outside/x", "a\0b", "link/x"])
def test_nothing_is_reached_but_below_the_root(path: str, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a").mkdir(parents=True)
    outside.mkdir()
    (root / "link").symlink_to(outside)
    storage = LocalStorage(root)
    for reach in (
        lambda: storage.append(path, b"x"),
        lambda: storage.replace(path, b"x"),
        lambda: storage.make_directory(path),
        lambda: storage.make_directory(path, durable=True),
        lambda: storage.read(path, 1),
    ):
        with pytest.raises(OSError):  # noqa: PT011
            reach()
    assert list(outside.iterdir()) == list((root / "a").iterdir()) == []
    assert sorted(path.name for path in root.iterdir()) == ["a", "link"]


def test_every_directory_that_is_made_is_written_into_the_one_above(tmp_path: Path) -> None:
    synced: list[Path] = []

    def sync(directory: Path) -> None:
        synced.append(directory)
        assert (directory / "abc"[len(synced) - 1]).is_dir(), "once it is there"

    for _ in range(2):  # what is there already is not made
        make_durably(tmp_path / "a" / "b" / "c", sync)
        assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_durably(tmp_path / "file", sync)
    with pytest.raises(NotADirectoryError):
        make_durably(tmp_path / "file" / "below", sync)
